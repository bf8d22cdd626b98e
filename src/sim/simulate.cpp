#include "sim/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "sim/longest_paths.h"
#include "sim/rescheduled.h"

namespace molen::sim {
namespace {

constexpr int kNone = -1;

// A stream of a stage: a thread that runs ops in list order.
struct Lane {
  std::size_t stage = 0;
  program::Stream stream{};
  std::vector<int> queue;
  std::size_t next = 0;
  int op = kNone;        // the op that has started and not ended
  bool working = false;  // false: the op waits for the other members of its meeting
  double left = 0.0;     // work that is left of the op
};

// The streams of all stages, which run at the same time. Between two events (an event is the end of an op's own work)
// all threads run at the same speed.
class World {
 public:
  World(const program::Stages& stages, std::vector<std::vector<double>> work, const CoreContention& sharing)
      : stages_(stages), sharing_(sharing), work_(std::move(work)), meetings_(stages.meetings()) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& ops = stages.ops(s);
      if (sharing.one_at_a_time) in_turn_.push_back(program::communication_before(ops));
      std::array<Lane, program::kNumStreams> lanes;
      for (std::size_t i = 0; i < ops.size(); ++i)
        lanes[static_cast<std::size_t>(ops[i].step->stream)].queue.push_back(static_cast<int>(i));
      for (std::size_t k = 0; k < lanes.size(); ++k) {
        if (lanes[k].queue.empty()) continue;
        lanes[k].stage = s;
        lanes[k].stream = program::kAllStreams[k];
        lanes_.push_back(std::move(lanes[k]));
      }
      ended_.emplace_back(ops.size(), false);
      timelines_.emplace_back();
      timelines_.back().ops.resize(ops.size());
    }
  }

  std::vector<program::Timeline> run() {
    for (start_ready(); anyone_works(); start_ready()) end_next();
    for (const Lane& lane : lanes_)
      MOLEN_CHECK(lane.op == kNone && lane.next == lane.queue.size(), "the simulated streams wait for each other");
    return std::move(timelines_);
  }

 private:
  struct Meeting {
    std::size_t arrived = 0, finished = 0;
    double last_arrival_s = 0.0;
  };

  bool anyone_works() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.working; });
  }

  bool ended(std::size_t stage, int op) const { return ended_[stage][static_cast<std::size_t>(op)]; }

  bool ready(const Lane& lane, int op) const {
    const auto& after = stages_.ops(lane.stage)[static_cast<std::size_t>(op)].after;
    if (!std::all_of(after.begin(), after.end(), [&](int a) { return ended(lane.stage, a); })) return false;
    if (in_turn_.empty()) return true;
    const int before = in_turn_[lane.stage][static_cast<std::size_t>(op)];
    return before < 0 || ended(lane.stage, before);
  }

  void start_ready() {
    for (Lane& lane : lanes_) {
      if (lane.op != kNone || lane.next == lane.queue.size()) continue;
      const int op = lane.queue[lane.next];
      if (!ready(lane, op)) continue;
      const auto i = static_cast<std::size_t>(op);
      lane.op = op;
      lane.left = work_[lane.stage][i];
      ++lane.next;
      timelines_[lane.stage].ops[i] = {.start_s = now_, .end_s = now_, .cpu_s = lane.left};
      const int meeting = stages_.meeting_of(lane.stage, i);
      lane.working = meeting < 0;
      if (meeting >= 0) arrive(meeting);
    }
  }

  // The members of a meeting begin their work when the last of them has arrived.
  void arrive(int number) {
    Meeting& meeting = meetings_[static_cast<std::size_t>(number)];
    const auto& members = stages_.members(number);
    if (++meeting.arrived < members.size()) return;
    meeting.last_arrival_s = now_;
    for (const auto& member : members) lane_of(member).working = true;
  }

  Lane& lane_of(const program::Stages::Member& member) {
    const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
      return lane.stage == static_cast<std::size_t>(member.stage) && lane.op == static_cast<int>(member.op);
    });
    MOLEN_CHECK(found != lanes_.end(), "op {} of stage {} does not run", member.op, member.stage);
    return *found;
  }

  void end_next() {
    double wanted = 0.0;  // threads of all ranks
    Lane* first = nullptr;
    for (Lane& lane : lanes_) {
      if (!lane.working) continue;
      wanted += threads_of(lane.stream);
      if (!first || lane.left < first->left) first = &lane;
    }
    const double least = first->left;
    now_ += least / sharing_.rate(wanted);
    for (Lane& lane : lanes_)
      if (lane.working) lane.left -= least;
    first->working = false;
    const int meeting = stages_.meeting_of(first->stage, static_cast<std::size_t>(first->op));
    if (meeting < 0)
      end(*first);
    else
      finish(meeting);
  }

  // The members of a meeting leave it when the last of them has done its work.
  void finish(int number) {
    Meeting& meeting = meetings_[static_cast<std::size_t>(number)];
    const auto& members = stages_.members(number);
    if (++meeting.finished < members.size()) return;
    for (const auto& member : members) {
      Lane& lane = lane_of(member);
      auto& time = timelines_[lane.stage].ops[member.op];
      time.waited_s = meeting.last_arrival_s - time.start_s;
      end(lane);
    }
  }

  void end(Lane& lane) {
    timelines_[lane.stage].ops[static_cast<std::size_t>(lane.op)].end_s = now_;
    ended_[lane.stage][static_cast<std::size_t>(lane.op)] = true;
    timelines_[lane.stage].total_s = now_;
    lane.op = kNone;
  }

  // Copies and the host's work have as many threads as compute; each stream of communication has one. A lane stands for
  // all ranks of its stage.
  double threads_of(program::Stream stream) const {
    const double of_rank = program::communicates(stream) ? 1 : sharing_.threads;
    return of_rank * sharing_.ranks / static_cast<double>(stages_.size());
  }

  const program::Stages& stages_;
  const CoreContention sharing_;
  std::vector<std::vector<double>> work_;
  std::vector<std::vector<bool>> ended_;
  std::vector<std::vector<int>> in_turn_;  // by stage, as in exec::Executor
  std::vector<Lane> lanes_;
  std::vector<Meeting> meetings_;
  double now_ = 0.0;
  std::vector<program::Timeline> timelines_;
};

}  // namespace

bool may_slow_down(const program::Stages& stages, const CoreContention& sharing) {
  double threads = 0.0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::array<bool, program::kNumStreams> used{};
    for (const auto& op : stages.ops(s)) used[static_cast<std::size_t>(op.step->stream)] = true;
    for (const program::Stream stream : program::kAllStreams)
      if (used[static_cast<std::size_t>(stream)]) threads += program::communicates(stream) ? 1 : sharing.threads;
  }
  return sharing.rate(threads * sharing.ranks / static_cast<double>(stages.size())) < 1.0;
}

std::vector<program::Timeline> simulate_events(const program::Stages& stages, std::vector<std::vector<double>> work,
                                               const CoreContention& sharing) {
  return World(stages, std::move(work), sharing).run();
}

std::vector<program::Timeline> simulate(const program::Stages& stages, std::vector<std::vector<double>> work,
                                        const CoreContention& sharing) {
  MOLEN_CHECK(work.size() == stages.size(), "work of {} stages for {}", work.size(), stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    MOLEN_CHECK(work[s].size() == stages.ops(s).size(), "{} ops with the work of {}", stages.ops(s).size(),
                work[s].size());
  if (!may_slow_down(stages, sharing))
    if (auto timelines = longest_paths(stages, work, sharing.one_at_a_time)) return std::move(*timelines);
  return simulate_events(stages, std::move(work), sharing);
}

namespace {

// The seconds of the ops of a stage and of their epilogues. Instances of a body share their steps.
class StageCosts {
 public:
  StageCosts(const program::Program& program, const std::vector<program::Expanded>& ops, const Costs& costs)
      : ops_(ops) {
    for (const program::Body& body : program.bodies) of_.emplace_back(body.steps.size());
    for (const auto& op : ops) {
      Cost& cost = of_[static_cast<std::size_t>(op.body)][static_cast<std::size_t>(op.op)];
      if (cost.known) continue;
      cost = {true, costs.seconds(program, *op.step), {}};
      if (!op.step->epilogues.empty()) cost.epilogues = costs.epilogue_seconds(*op.step);
      if (const double seconds = cost.seconds; !(seconds >= 0.0) || !std::isfinite(seconds))
        throw UsageError("'{}' is predicted to take {} seconds, which no machine can: check what --cluster names",
                         program::kind_of(op.step->op), seconds);
    }
  }

  std::vector<double> work() const {
    std::vector<double> work;
    work.reserve(ops_.size());
    for (const auto& op : ops_) work.push_back(cost_of(op).seconds);
    return work;
  }

  // Threads that share cores stretch an op and its epilogues alike.
  void set_epilogues(program::Timeline& timeline) const {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const program::Step& step = *ops_[i].step;
      if (step.epilogues.empty()) continue;
      const Cost& cost = cost_of(ops_[i]);
      program::OpTime& time = timeline.ops[i];
      const double stretch = cost.seconds > 0.0 ? (time.seconds() - time.waited_s) / cost.seconds : 1.0;
      for (std::size_t k = 0; k < cost.epilogues.size(); ++k) {
        const auto kind = static_cast<std::size_t>(step.epilogues[k].kind);
        time.epilogue_s[kind] = cost.epilogues[k] * stretch;
        time.epilogue_cpu_s[kind] = cost.epilogues[k];
      }
    }
  }

 private:
  struct Cost {
    bool known = false;
    double seconds = 0.0;
    std::vector<double> epilogues;
  };
  const Cost& cost_of(const program::Expanded& op) const {
    return of_[static_cast<std::size_t>(op.body)][static_cast<std::size_t>(op.op)];
  }
  const std::vector<program::Expanded>& ops_;
  std::vector<std::vector<Cost>> of_;  // by body and op
};

}  // namespace

std::vector<program::Timeline> simulate(const program::Stages& stages, const Costs& costs) {
  return *simulate_if(stages, costs, [](const auto&) { return true; });
}

std::optional<std::vector<program::Timeline>> simulate_if(
    const program::Stages& stages, const Costs& costs,
    const std::function<bool(const std::vector<program::Timeline>&)>& accepts) {
  std::vector<StageCosts> of_stage;
  std::vector<std::vector<double>> work;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    of_stage.emplace_back(stages.program(s), stages.ops(s), costs);
    work.push_back(of_stage.back().work());
    if (costs.reduces_last()) reduce_last(stages.ops(s), work.back());
    if (costs.gathers_in_forward()) gather_in_forward(stages.ops(s), work.back());
  }
  auto timelines = simulate(stages, work, costs.core_contention());
  if (!accepts(timelines)) return std::nullopt;
  // A first simulation without interference shows which ops run side by side. Slower compute moves later ops,
  // but hardly changes how much communication runs beside compute in all.
  if (const Interference interference = costs.interference(); interference != Interference{}) {
    timelines = simulate(stages, interfered(stages, timelines, std::move(work), interference), costs.core_contention());
    if (!accepts(timelines)) return std::nullopt;
  }
  for (std::size_t s = 0; s < stages.size(); ++s) of_stage[s].set_epilogues(timelines[s]);
  return timelines;
}

std::size_t busiest_of(const std::vector<double>& seconds) {
  constexpr double kRounding = 1e-9;
  const double most = *std::max_element(seconds.begin(), seconds.end());
  const auto first = std::find_if(seconds.begin(), seconds.end(),
                                  [&](double of_stage) { return of_stage >= most * (1.0 - kRounding); });
  return static_cast<std::size_t>(first - seconds.begin());
}

std::size_t busiest_stage(const program::Stages& stages, const std::vector<program::Timeline>& timelines) {
  std::vector<double> busy(stages.size(), 0.0);
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
      const program::Step& step = *stages.ops(s)[i].step;
      if (step.stream == program::Stream::kCompute && !program::is_communication(step.op))
        busy[s] += timelines[s].ops[i].seconds();
    }
  return busiest_of(busy);
}

double step_seconds(const std::vector<program::Timeline>& stages) {
  double last = 0.0;
  for (const program::Timeline& stage : stages) last = std::max(last, stage.total_s);
  return last;
}

}  // namespace molen::sim
