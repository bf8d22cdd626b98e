#include "sim/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "program/values/optimizer.h"

namespace molen::sim {
namespace {

constexpr int kNone = -1;

// The streams of one rank, which run at the same time. Between two events (an event is the end of an op) all threads
// run at the same speed.
class Streams {
 public:
  Streams(const std::vector<program::Expanded>& ops, std::vector<double> work, const Sharing& sharing)
      : ops_(ops), sharing_(sharing), work_(std::move(work)), ended_(ops.size(), false) {
    if (sharing.one_at_a_time) in_turn_ = program::communication_before(ops);
    for (std::size_t i = 0; i < ops.size(); ++i)
      queues_[static_cast<std::size_t>(ops[i].step->stream)].push_back(static_cast<int>(i));
    timeline_.ops.resize(ops.size());
  }

  program::Timeline run() {
    for (start_ready(); busy(); start_ready()) end_next();
    for (std::size_t s = 0; s < queues_.size(); ++s)
      MOLEN_CHECK(next_[s] == queues_[s].size(), "the simulated streams wait for each other");
    timeline_.total_s = now_;
    return std::move(timeline_);
  }

 private:
  bool busy() const {
    return std::any_of(current_.begin(), current_.end(), [](int op) { return op != kNone; });
  }

  void start_ready() {
    for (std::size_t s = 0; s < queues_.size(); ++s) {
      if (current_[s] != kNone || next_[s] == queues_[s].size()) continue;
      const int op = queues_[s][next_[s]];
      const auto& after = ops_[static_cast<std::size_t>(op)].after;
      if (!std::all_of(after.begin(), after.end(), [&](int a) { return ended_[static_cast<std::size_t>(a)]; }))
        continue;
      if (!in_turn_.empty() && in_turn_[static_cast<std::size_t>(op)] >= 0 &&
          !ended_[static_cast<std::size_t>(in_turn_[static_cast<std::size_t>(op)])])
        continue;
      current_[s] = op;
      left_[s] = work_[static_cast<std::size_t>(op)];
      timeline_.ops[static_cast<std::size_t>(op)] = {.start_s = now_, .end_s = now_, .cpu_s = left_[s]};
      ++next_[s];
    }
  }

  void end_next() {
    constexpr auto kCompute = static_cast<std::size_t>(program::Stream::kCompute);
    std::size_t first = 0;
    double least = std::numeric_limits<double>::infinity();
    int others = 0;
    for (std::size_t s = 0; s < current_.size(); ++s) {
      if (current_[s] == kNone) continue;
      // Copies and the host's work have as many threads as compute; each stream of communication has one.
      if (s != kCompute) others += program::communicates(program::kAllStreams[s]) ? 1 : sharing_.threads;
      if (left_[s] < least) least = left_[s], first = s;
    }
    now_ += least / sharing_.rate(current_[kCompute] != kNone, others);
    for (double& left : left_) left -= least;
    const auto op = static_cast<std::size_t>(current_[first]);
    timeline_.ops[op].end_s = now_;
    ended_[op] = true;
    current_[first] = kNone;
  }

  const std::vector<program::Expanded>& ops_;
  const Sharing sharing_;
  std::vector<double> work_;
  std::vector<bool> ended_;
  std::vector<int> in_turn_;  // as in exec::Executor
  std::array<std::vector<int>, program::kNumStreams> queues_;
  std::array<std::size_t, program::kNumStreams> next_{};
  std::array<int, program::kNumStreams> current_ = [] {
    std::array<int, program::kNumStreams> none{};
    none.fill(kNone);
    return none;
  }();
  std::array<double, program::kNumStreams> left_{};
  double now_ = 0.0;
  program::Timeline timeline_;
};

}  // namespace

std::optional<Unsimulated> unsimulated(const program::Setting& s) {
  if (s.pipelined())
    return Unsimulated{"parallel.pipeline",
                       "the simulator knows one stage; stages that wait for each other are not built yet"};
  if (s.tensor())
    return Unsimulated{"parallel.tensor",
                       "the head and the sums of tensor ranks are not calibrated: `molen calibrate` runs programs of "
                       "whole layers"};
  if (s.ring())
    return Unsimulated{"parallel.context_form",
                       "messages along a ring are not calibrated; \"gather\" can be simulated"};
  if (s.narrow_over(program::Axis::kDp) && s.holders() > 1)
    return Unsimulated{"precision.reduce",
                       "gradients that travel in a narrower type are not calibrated; \"fp32\" can be "
                       "simulated"};
  if (program::optimizer_named(s.optimizer).has_whole())
    return Unsimulated{"optimizer.kind", "an optimizer that works on whole matrices is not calibrated"};
  if (s.document_mask)
    return Unsimulated{"data.document_mask",
                       "attention within documents, whose work depends on the data, is not calibrated"};
  return std::nullopt;
}

program::Timeline simulate(const std::vector<program::Expanded>& ops, std::vector<double> work,
                           const Sharing& sharing) {
  MOLEN_CHECK(ops.size() == work.size(), "{} ops with the work of {}", ops.size(), work.size());
  return Streams(ops, std::move(work), sharing).run();
}

program::Timeline simulate(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const Costs& costs) {
  if (const auto not_yet = unsimulated(program.setting)) throw UsageError("{}: {}", not_yet->key, not_yet->why);
  std::vector<double> work;
  std::map<const program::Step*, double> cost;  // instances of a body share their steps
  std::map<const program::Step*, std::vector<double>> epilogues;
  for (const auto& op : ops) {
    auto [found, fresh] = cost.try_emplace(op.step, 0.0);
    if (fresh) {
      found->second = costs.seconds(program, *op.step);
      epilogues[op.step] = costs.epilogue_seconds(*op.step);
    }
    if (!(found->second >= 0.0) || !std::isfinite(found->second))
      throw UsageError("the calibration gives '{}' {} seconds: run `molen calibrate` again",
                       program::kind_of(op.step->op), found->second);
    work.push_back(found->second);
  }
  program::Timeline timeline = simulate(ops, work, costs.sharing());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    // Threads that share cores stretch an op as a whole.
    program::OpTime& time = timeline.ops[i];
    const double stretch = work[i] > 0.0 ? time.seconds() / work[i] : 1.0;
    const std::vector<double>& seconds = epilogues[ops[i].step];
    for (std::size_t k = 0; k < seconds.size(); ++k) {
      const auto kind = static_cast<std::size_t>(ops[i].step->epilogues[k].kind);
      time.epilogue_s[kind] = seconds[k] * stretch;
      time.epilogue_cpu_s[kind] = seconds[k];
    }
  }
  return timeline;
}

}  // namespace molen::sim
