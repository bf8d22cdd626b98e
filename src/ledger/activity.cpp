#include "ledger/activity.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace molen::ledger {

namespace {
constexpr double kNever = -std::numeric_limits<double>::infinity();
}

Activity::Activity(int phases, int ranks)
    : phases_(static_cast<std::size_t>(phases)),
      rank_until_s_(static_cast<std::size_t>(ranks), kNever),
      complete_until_s_(kNever),
      forgotten_until_s_(kNever) {
  if (ranks < 1) throw Error("a scope without ranks has no phases");
}

void Activity::add(int rank, int phase, double start_s, double end_s) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= rank_until_s_.size() || phase < 0 || phase >= phases())
    throw Error("rank {} in phase {}: there are {} ranks and {} phases", rank, phase, rank_until_s_.size(), phases());
  if (!(end_s >= start_s))
    throw Error("phase {} of rank {} ends at {} s, before its start at {} s", phase, rank, end_s, start_s);
  const double until_s = rank_until_s_[static_cast<std::size_t>(rank)];
  if (start_s < until_s)
    throw Error("phase {} of rank {} begins at {} s, but this rank was said to be complete up to {} s", phase, rank,
                start_s, until_s);
  auto& later = phases_[static_cast<std::size_t>(phase)].later;
  later.push({start_s, 1.0});
  later.push({end_s, -1.0});
}

void Activity::complete(int rank, double until_s) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= rank_until_s_.size())
    throw Error("rank {} of {} ranks", rank, rank_until_s_.size());
  double& rank_until_s = rank_until_s_[static_cast<std::size_t>(rank)];
  rank_until_s = std::max(rank_until_s, until_s);
  complete_until_s_ = *std::min_element(rank_until_s_.begin(), rank_until_s_.end());
  for (Phase& phase : phases_)
    while (!phase.later.empty() && phase.later.top().time_s <= complete_until_s_) {
      const Step step = phase.later.top();
      phase.later.pop();
      Knot next{step.time_s, 0.0, step.ranks};
      if (!phase.knots.empty()) {
        const Knot& last = phase.knots.back();
        next.seconds = last.seconds + last.ranks * (step.time_s - last.time_s);
        next.ranks += last.ranks;
      }
      phase.knots.push_back(next);
    }
}

double Activity::seconds(int phase, double time_s) const {
  if (time_s > complete_until_s_) throw Error("the phases at {} s are known up to {} s", time_s, complete_until_s_);
  if (time_s < forgotten_until_s_)
    throw Error("the phases at {} s were forgotten up to {} s", time_s, forgotten_until_s_);
  const auto& knots = phases_[static_cast<std::size_t>(phase)].knots;
  const auto after =
      std::upper_bound(knots.begin(), knots.end(), time_s, [](double t, const Knot& knot) { return t < knot.time_s; });
  if (after == knots.begin()) return 0.0;
  const Knot& knot = *std::prev(after);
  return knot.seconds + knot.ranks * (time_s - knot.time_s);
}

void Activity::forget(double before_s) {
  forgotten_until_s_ = std::max(forgotten_until_s_, before_s);
  for (Phase& phase : phases_)
    while (phase.knots.size() > 1 && phase.knots[1].time_s <= forgotten_until_s_) phase.knots.pop_front();
}

std::size_t Activity::knots() const {
  std::size_t kept = 0;
  for (const Phase& phase : phases_) kept += phase.knots.size();
  return kept;
}

}  // namespace molen::ledger
