#include "sim/intervals.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

namespace molen::sim {
namespace {

// The seconds of steps of a program, in the order in which steps come first: of their own work, and of each epilogue.
// Instances of a body share their steps.
class WorkOfSteps {
 public:
  struct Seconds {
    std::size_t stage;
    const program::Step* step;
    std::vector<double> seconds;
  };

  // Adds the time of an op, without waiting.
  void add(std::size_t stage, const program::Step& step, const program::OpTime& time) {
    const auto [found, fresh] = places_.try_emplace(&step, all_.size());
    if (fresh) all_.push_back({stage, &step, std::vector<double>(1 + step.epilogues.size())});
    std::vector<double>& seconds = all_[found->second].seconds;
    double own = time.seconds() - time.waited_s;
    for (std::size_t k = 0; k < step.epilogues.size(); ++k) {
      const double epilogue = time.epilogue_s[static_cast<std::size_t>(step.epilogues[k].kind)];
      seconds[k + 1] += epilogue, own -= epilogue;
    }
    seconds[0] += std::max(0.0, own);
  }
  const std::vector<Seconds>& all() const { return all_; }

 private:
  std::vector<Seconds> all_;
  std::unordered_map<const program::Step*, std::size_t> places_;
};

// The mean of errors over seconds.
struct MeanErrors {
  double total_s = 0.0;
  Errors sums;

  void add(const Errors& errors, double seconds) {
    total_s += seconds;
    for (const auto& [source, error] : errors) sums[source] += seconds * error;
  }
  Errors mean() const {
    Errors mean = sums;
    for (auto& [source, error] : mean) error /= total_s;
    return total_s > 0.0 ? mean : Errors{};
  }
};

// An op of a stage.
struct Place {
  std::size_t stage = 0, op = 0;
};

// The ops that decide how long a step takes: from the last one that ends back to the first, each the one for which the
// next waits.
class CriticalPath {
 public:
  CriticalPath(const program::Stages& stages, const std::vector<program::Timeline>& timelines)
      : stages_(stages), timelines_(timelines) {}

  template <class Call>
  void each(const Call& call) const {
    std::size_t left = 0;  // no op is twice on a path
    for (std::size_t s = 0; s < stages_.size(); ++s) left += stages_.ops(s).size();
    for (auto at = last(); at && left > 0; at = before(arrival(*at)), --left) call(*at);
  }

 private:
  const program::OpTime& time(const Place& p) const { return timelines_[p.stage].ops[p.op]; }

  std::optional<Place> last() const {
    std::optional<Place> last;
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (std::size_t i = 0; i < stages_.ops(s).size(); ++i)
        if (!last || timelines_[s].ops[i].end_s > time(*last).end_s) last = Place{s, i};
    return last;
  }

  // Returns the member of the op's meeting for which the others waited, or the op itself.
  Place arrival(const Place& p) const {
    const int meeting = stages_.meeting_of(p.stage, p.op);
    Place latest = p;
    if (meeting < 0) return latest;
    for (const auto& member : stages_.members(meeting))
      if (const Place other{static_cast<std::size_t>(member.stage), member.op};
          time(other).start_s > time(latest).start_s)
        latest = other;
    return latest;
  }

  // Returns the op of the same stage that ends last before this one begins, among those that it may wait for: those
  // that it names, the one before it on its stream, and, where communicators take turns, the one that communicates
  // before it. An op without work ends as early as it begins, so an op before it in the list is taken.
  std::optional<Place> before(const Place& p) const {
    const auto& ops = stages_.ops(p.stage);
    const program::Expanded& op = ops[p.op];
    std::optional<Place> latest;
    const auto consider = [&](std::size_t other) {
      const Place at{p.stage, other};
      if (time(at).end_s <= time(p).start_s && (!latest || time(at).end_s > time(*latest).end_s)) latest = at;
    };
    for (const int after : op.after) consider(static_cast<std::size_t>(after));
    bool stream = false, turn = !program::is_communication(op.step->op);
    for (std::size_t i = p.op; i-- > 0 && !(stream && turn);) {
      const program::Step& other = *ops[i].step;
      const bool of_stream = other.stream == op.step->stream;
      if ((of_stream && !stream) || (!turn && program::is_communication(other.op))) consider(i);
      stream = stream || of_stream, turn = turn || program::is_communication(other.op);
    }
    return latest;
  }

  const program::Stages& stages_;
  const std::vector<program::Timeline>& timelines_;
};

}  // namespace

double spread_of(const Errors& errors) {
  double sum = 0.0;
  for (const auto& [source, error] : errors) sum += error * error;
  return std::sqrt(sum);
}

std::pair<double, double> ends_of(double seconds, double spread) {
  return {seconds / (1.0 + spread), seconds * (1.0 + spread)};
}

Errors errors_of_step(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                      const OpErrors& errors) {
  WorkOfSteps work;
  CriticalPath(stages, timelines).each([&](const Place& p) {
    work.add(p.stage, *stages.ops(p.stage)[p.op].step, timelines[p.stage].ops[p.op]);
  });
  MeanErrors mean;
  for (const auto& [stage, step, seconds] : work.all()) {
    if (std::ranges::all_of(seconds, [](double s) { return s == 0.0; })) continue;
    const std::vector<Errors> of = errors.of(stages.program(stage), *step);
    for (std::size_t k = 0; k < seconds.size(); ++k) mean.add(of.at(k), seconds[k]);
  }
  return mean.mean();
}

std::map<std::string, double> spreads_of_kinds(const program::Program& program,
                                               const std::vector<program::Expanded>& ops,
                                               const program::Timeline& timeline, const OpErrors& errors) {
  WorkOfSteps work;
  for (std::size_t i = 0; i < ops.size(); ++i) work.add(0, *ops[i].step, timeline.ops[i]);
  std::map<std::string, MeanErrors> by_kind;
  for (const auto& [stage, step, seconds] : work.all()) {
    const std::vector<Errors> of = errors.of(program, *step);
    by_kind[program::kind_of(step->op)].add(of.at(0), seconds[0]);
    for (std::size_t k = 0; k < step->epilogues.size(); ++k)
      by_kind[program::kind_of(step->epilogues[k].kind)].add(of.at(k + 1), seconds[k + 1]);
  }
  std::map<std::string, double> spreads;
  for (const auto& [kind, mean] : by_kind)
    if (mean.total_s > 0.0) spreads[kind] = spread_of(mean.mean());
  return spreads;
}

void set_spreads(program::Comparison& comparison, const program::Stages& stages, std::size_t stage,
                 const std::vector<program::Timeline>& timelines, const OpErrors& errors) {
  comparison.step_spread = spread_of(errors_of_step(stages, timelines, errors));
  const auto spreads = spreads_of_kinds(stages.program(stage), stages.ops(stage), timelines.at(stage), errors);
  for (program::KindRow& row : comparison.rows)
    if (const auto found = spreads.find(row.kind); found != spreads.end()) row.spread = found->second;
}

}  // namespace molen::sim
