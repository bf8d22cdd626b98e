// The check and the simulation, which all schedules share whatever their origin.
#include "program/schedule/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::program {
namespace {

bool is_forward_action(const Action& a) {
  return a.kind == Pass::kForward;
}
bool gives_input_gradient(const Action& a) {
  return a.kind == Pass::kBackward || a.kind == Pass::kBackwardInput;
}

// Returns the global stage whose action of the same direction must end before `a` starts, or -1. An action of the same
// global stage that `a` needs comes earlier in the list of that stage.
int waits_for(const Schedule& s, int stage, const Action& a) {
  const int g = s.global_stage(stage, a.chunk);
  if (is_forward_action(a)) return g - 1;
  if (gives_input_gradient(a) && g + 1 < s.global_stages()) return g + 1;
  return -1;
}

// Runs each stage's list as far as it can and calls visit(stage, position) in an order that respects all waits. Returns
// how many actions of each stage ran. The end of an action can wake only one stage, so this takes O(actions).
template <class Visit>
std::vector<std::size_t> run_in_order(const Schedule& s, Visit&& visit) {
  const auto m = static_cast<std::size_t>(s.micro_batches);
  const auto cell = [&](int g, int i) { return static_cast<std::size_t>(g) * m + static_cast<std::size_t>(i); };
  const auto cells = static_cast<std::size_t>(s.global_stages()) * m;
  std::vector<bool> forward(cells), backward(cells);
  std::vector<std::size_t> next(s.order.size(), 0);
  std::vector<int> work;
  std::vector<bool> queued(s.order.size(), true);
  for (int stage = s.stages - 1; stage >= 0; --stage) work.push_back(stage);
  const auto wake = [&](int global, int by) {
    if (global < 0 || global >= s.global_stages()) return;
    const int stage = s.stage_of(global);
    if (stage == by || queued[static_cast<std::size_t>(stage)]) return;
    queued[static_cast<std::size_t>(stage)] = true;
    work.push_back(stage);
  };
  while (!work.empty()) {
    const int stage = work.back();
    const auto at = static_cast<std::size_t>(stage);
    work.pop_back();
    queued[at] = false;
    for (; next[at] < s.order[at].size(); ++next[at]) {
      const Action& a = s.order[at][next[at]];
      const int need = waits_for(s, stage, a);
      if (need >= 0 && !(is_forward_action(a) ? forward : backward)[cell(need, a.micro_batch)]) break;
      visit(stage, next[at]);
      const int g = s.global_stage(stage, a.chunk);
      if (is_forward_action(a)) {
        forward[cell(g, a.micro_batch)] = true;
        wake(g + 1, stage);
      } else if (gives_input_gradient(a)) {
        backward[cell(g, a.micro_batch)] = true;
        wake(g - 1, stage);
      }
    }
  }
  return next;
}

std::string at(const Schedule& s, int stage, std::size_t position) {
  return fmt::format("stage {}, action {} ({})", stage, position + 1,
                     to_string(s, stage, s.order[static_cast<std::size_t>(stage)][position]));
}

void check_sizes(const Schedule& s) {
  if (s.stages < 1 || s.chunks < 1 || s.micro_batches < 1)
    throw UsageError("a pipeline schedule needs at least one stage, chunk and micro-batch, not {}, {} and {}", s.stages,
                     s.chunks, s.micro_batches);
  // Compares factor by factor, because the product of three counts may overflow.
  const auto global = std::int64_t{s.stages} * s.chunks;
  if (global > kMaxScheduleActions || global * s.micro_batches > kMaxScheduleActions / 2)
    throw UsageError("a pipeline schedule of {} stages x {} chunks x {} micro-batches has more than {} actions",
                     s.stages, s.chunks, s.micro_batches, kMaxScheduleActions);
  if (s.placement == Placement::kV && (s.chunks != 2 || s.stages < 2))
    throw UsageError("a V needs 2 chunks on at least 2 stages, not {} on {}", s.chunks, s.stages);
  if (s.order.size() != static_cast<std::size_t>(s.stages))
    throw UsageError("a pipeline schedule of {} stages has {} lists of actions", s.stages, s.order.size());
}

enum class Progress : std::uint8_t { kNone, kForward, kInput, kDone };

// Returns why `a` cannot run now, or nullptr when it can. Also updates `state`.
const char* advance(Progress& state, const Action& a) {
  const Progress before = state;
  switch (a.kind) {
    case Pass::kForward:
      if (before != Progress::kNone) return "this forward has run before";
      state = Progress::kForward;
      return nullptr;
    case Pass::kBackward:
    case Pass::kBackwardInput:
      if (before == Progress::kNone) return "its forward must run before it";
      if (before != Progress::kForward) return "its backward has run before";
      state = a.kind == Pass::kBackward ? Progress::kDone : Progress::kInput;
      return nullptr;
    case Pass::kBackwardWeights:
      if (before == Progress::kDone) return "its weight gradient has been computed before";
      if (before != Progress::kInput) return "its backward of the input (I) must run before it";
      state = Progress::kDone;
      return nullptr;
    case Pass::kRecompute:
      break;
  }
  return "a recomputation is no action of a schedule";
}

// Checks one stage alone. It must run each of its actions once, in an order that respects the dependencies among them.
void check_stage(const Schedule& s, int stage) {
  const auto m = static_cast<std::size_t>(s.micro_batches);
  const auto& order = s.order[static_cast<std::size_t>(stage)];
  std::vector<Progress> progress(static_cast<std::size_t>(s.chunks) * m, Progress::kNone);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Action& a = order[i];
    if (a.chunk < 0 || a.chunk >= s.chunks || a.micro_batch < 0 || a.micro_batch >= s.micro_batches)
      throw UsageError("stage {}, action {}: chunk {}, micro-batch {} is not one of {} chunks and {} micro-batches",
                       stage, i + 1, a.chunk, a.micro_batch, s.chunks, s.micro_batches);
    auto& state = progress[static_cast<std::size_t>(a.chunk) * m + static_cast<std::size_t>(a.micro_batch)];
    if (const char* wrong = advance(state, a)) throw UsageError("{}: {}", at(s, stage, i), wrong);
  }
  for (std::size_t i = 0; i < progress.size(); ++i) {
    if (progress[i] == Progress::kDone) continue;
    const char* missing = progress[i] == Progress::kNone      ? "forward (F)"
                          : progress[i] == Progress::kForward ? "backward (B, or I and W)"
                                                              : "weight gradient (W)";
    throw UsageError("stage {}: the {} of micro-batch {} through global stage {} is missing after {} actions", stage,
                     missing, i % m, s.global_stage(stage, static_cast<int>(i / m)), order.size());
  }
}

// Follows the waits from stage to stage until a stage occurs again, which closes the cycle.
[[noreturn]] void report_deadlock(const Schedule& s, const std::vector<std::size_t>& ran) {
  constexpr int kShown = 6;
  const auto stuck = [&](int stage) {
    return ran[static_cast<std::size_t>(stage)] < s.order[static_cast<std::size_t>(stage)].size();
  };
  int stage = 0;
  while (!stuck(stage)) ++stage;
  std::vector<bool> seen(static_cast<std::size_t>(s.stages));
  std::string chain;
  for (int hops = 0; !seen[static_cast<std::size_t>(stage)]; ++hops) {
    seen[static_cast<std::size_t>(stage)] = true;
    const std::size_t position = ran[static_cast<std::size_t>(stage)];
    const Action& a = s.order[static_cast<std::size_t>(stage)][position];
    const int need = waits_for(s, stage, a);
    const int next = s.stage_of(need);
    if (hops < kShown)
      chain += fmt::format("{}{} waits for {}{}{} of stage {}", hops ? "; " : "", at(s, stage, position), need,
                           is_forward_action(a) ? "F" : "B/I", a.micro_batch, next);
    else if (hops == kShown)
      chain += "; ...";
    stage = next;
  }
  throw UsageError("the stages wait for each other: {}", chain);
}

void check_costs(const Schedule& s, const ScheduleCosts& costs) {
  const auto global = static_cast<std::size_t>(s.global_stages());
  const auto bad = [](double seconds) { return !(std::isfinite(seconds) && seconds >= 0.0); };
  for (const auto* seconds : {&costs.forward_s, &costs.backward_s, &costs.backward_input_s, &costs.backward_weight_s}) {
    if (seconds->size() != global)
      throw UsageError("{} costs for a pipeline of {} global stages", seconds->size(), global);
    for (const double one : *seconds)
      if (bad(one)) throw UsageError("a pipeline action cannot take {} s", one);
  }
  if (bad(costs.transfer_s)) throw UsageError("a pipeline transfer cannot take {} s", costs.transfer_s);
}

const std::vector<double>& seconds_of(const ScheduleCosts& costs, Pass kind) {
  switch (kind) {
    case Pass::kForward:
      return costs.forward_s;
    case Pass::kBackward:
      return costs.backward_s;
    case Pass::kBackwardInput:
      return costs.backward_input_s;
    case Pass::kBackwardWeights:
      return costs.backward_weight_s;
    case Pass::kRecompute:
      break;
  }
  throw Error("a recomputation is no action of a schedule");
}

}  // namespace

void check(const Schedule& schedule) {
  check_sizes(schedule);
  for (int stage = 0; stage < schedule.stages; ++stage) check_stage(schedule, stage);
  const auto ran = run_in_order(schedule, [](int, std::size_t) {});
  for (std::size_t stage = 0; stage < ran.size(); ++stage)
    if (ran[stage] < schedule.order[stage].size()) report_deadlock(schedule, ran);
}

ScheduleCosts uniform_costs(const Schedule& schedule, double forward_s, double backward_input_s,
                            double backward_weight_s, double transfer_s) {
  const auto all = [&](double seconds) {
    return std::vector<double>(static_cast<std::size_t>(schedule.global_stages()), seconds);
  };
  return {all(forward_s), all(backward_input_s + backward_weight_s), all(backward_input_s), all(backward_weight_s),
          transfer_s};
}

ScheduleTimes simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  check(schedule);
  check_costs(schedule, costs);
  const auto m = static_cast<std::size_t>(schedule.micro_batches);
  const auto cell = [&](int g, int i) { return static_cast<std::size_t>(g) * m + static_cast<std::size_t>(i); };
  const auto cells = static_cast<std::size_t>(schedule.global_stages()) * m;
  std::vector<double> forward_end(cells, 0.0), backward_end(cells, 0.0);
  std::vector<double> free_at(schedule.order.size(), 0.0);
  ScheduleTimes times;
  for (const auto& order : schedule.order) times.actions.emplace_back(order.size());
  run_in_order(schedule, [&](int stage, std::size_t position) {
    const auto s = static_cast<std::size_t>(stage);
    const Action& a = schedule.order[s][position];
    const int g = schedule.global_stage(stage, a.chunk);
    auto& ends = is_forward_action(a) ? forward_end : backward_end;
    double start = free_at[s];
    if (const int need = waits_for(schedule, stage, a); need >= 0) {
      const double transfer = schedule.stage_of(need) == stage ? 0.0 : costs.transfer_s;
      start = std::max(start, ends[cell(need, a.micro_batch)] + transfer);
    }
    const double end = start + seconds_of(costs, a.kind)[static_cast<std::size_t>(g)];
    if (a.kind != Pass::kBackwardWeights) ends[cell(g, a.micro_batch)] = end;
    free_at[s] = end;
    times.actions[s][position] = {start, end};
    times.total_s = std::max(times.total_s, end);
  });
  return times;
}

double idle_share(const ScheduleTimes& times) {
  if (times.actions.empty() || !(times.total_s > 0.0)) return 0.0;
  double busy = 0.0;
  for (const auto& stage : times.actions)
    for (const OpTime& time : stage) busy += time.seconds();
  return 1.0 - busy / (static_cast<double>(times.actions.size()) * times.total_s);
}

}  // namespace molen::program
