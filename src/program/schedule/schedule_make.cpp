// Schedules with whole backwards (GPipe, 1F1B, interleaved 1F1B), and the entry points for all kinds.
#include <algorithm>

#include "base/error.h"
#include "base/suggest.h"
#include "program/schedule/schedule.h"
#include "program/schedule/schedule_detail.h"

namespace molen::program {
namespace {

// All forwards come before all backwards. They go chunk by chunk, so that each chunk's weights are needed in one
// stretch (Huang et al. 2018; with chunks, Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism").
void fill_gpipe(Schedule& s) {
  for (auto& order : s.order) {
    for (int c = 0; c < s.chunks; ++c)
      for (int i = 0; i < s.micro_batches; ++i) order.push_back({Pass::kForward, c, i});
    for (int c = s.chunks - 1; c >= 0; --c)
      for (int i = 0; i < s.micro_batches; ++i) order.push_back({Pass::kBackward, c, i});
  }
}

// A unit is one chunk for one micro-batch; forward unit k runs `warm_up` units ahead of backward unit k.
void fill_one_forward_one_backward(std::vector<Action>& order, const std::vector<Action>& forward,
                                   const std::vector<Action>& backward, std::size_t warm_up) {
  const std::size_t units = forward.size();
  warm_up = std::min(warm_up, units);
  for (std::size_t k = 0; k < units + warm_up; ++k) {
    if (k < units) order.push_back(forward[k]);
    if (k >= warm_up) order.push_back(backward[k - warm_up]);
  }
}

void fill_1f1b(Schedule& s) {
  std::vector<Action> forward, backward;
  for (int i = 0; i < s.micro_batches; ++i) {
    forward.push_back({Pass::kForward, 0, i});
    backward.push_back({Pass::kBackward, 0, i});
  }
  for (int stage = 0; stage < s.stages; ++stage)
    fill_one_forward_one_backward(s.order[static_cast<std::size_t>(stage)], forward, backward,
                                  static_cast<std::size_t>(s.stages - stage - 1));
}

void fill_interleaved(Schedule& s) {
  const int groups = std::max(1, s.micro_batches / s.stages);
  std::vector<Action> forward, backward;
  int first = 0, largest = 0;
  for (int group = 0; group < groups; ++group) {
    // The larger groups come first.
    const int size = s.micro_batches / groups + (group < s.micro_batches % groups ? 1 : 0);
    for (int c = 0; c < s.chunks; ++c) {
      for (int i = first; i < first + size; ++i) {
        forward.push_back({Pass::kForward, c, i});
        backward.push_back({Pass::kBackward, s.chunks - 1 - c, i});
      }
    }
    first += size;
    largest = std::max(largest, size);
  }
  for (int stage = 0; stage < s.stages; ++stage) {
    const auto warm_up = 2 * std::int64_t{s.stages - stage - 1} + std::int64_t{s.chunks - 1} * largest;
    fill_one_forward_one_backward(s.order[static_cast<std::size_t>(stage)], forward, backward,
                                  static_cast<std::size_t>(warm_up));
  }
}

void check_counts(ScheduleKind kind, int stages, int chunks, int micro_batches) {
  if (stages < 1 || chunks < 1 || micro_batches < 1)
    throw UsageError("schedule {}: needs at least one stage, chunk and micro-batch, not {}, {} and {}", name_of(kind),
                     stages, chunks, micro_batches);
  const bool one = kind == ScheduleKind::k1f1b || kind == ScheduleKind::kZbH1;
  if (one && chunks != 1)
    throw UsageError("schedule {}: has 1 chunk a stage, not {}; 'interleaved' has any number", name_of(kind), chunks);
  if (kind == ScheduleKind::kZbV && chunks != 2)
    throw UsageError("schedule zb-v: has 2 chunks a stage, not {}; 'interleaved' has any number", chunks);
  const int actions = kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbV ? 3 : 2;
  const auto global = std::int64_t{stages} * chunks;
  if (global > kMaxScheduleActions || global * micro_batches > kMaxScheduleActions / actions)
    throw UsageError("schedule {}: {} stages x {} chunks x {} micro-batches are more than {} actions", name_of(kind),
                     stages, chunks, micro_batches, kMaxScheduleActions);
}

}  // namespace

ScheduleKind parse_schedule_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const ScheduleKind kind : kAllScheduleKinds) {
    if (name == name_of(kind)) return kind;
    names.emplace_back(name_of(kind));
  }
  throw UsageError("'{}' is no pipeline schedule: gpipe, 1f1b, interleaved, zb-h1 and zb-v are{}", name,
                   did_you_mean(name, names));
}

Schedule make_schedule(ScheduleKind kind, int stages, int chunks, int micro_batches) {
  check_counts(kind, stages, chunks, micro_batches);
  Schedule s{stages, chunks, micro_batches, Placement::kInterleaved, {}};
  s.order.resize(static_cast<std::size_t>(stages));
  switch (kind) {
    case ScheduleKind::kGpipe:
      fill_gpipe(s);
      break;
    case ScheduleKind::k1f1b:
      fill_1f1b(s);
      break;
    case ScheduleKind::kInterleaved:
      chunks == 1 ? fill_1f1b(s) : fill_interleaved(s);
      break;
    case ScheduleKind::kZbH1:
      detail::fill_zb_h1(s);
      break;
    case ScheduleKind::kZbV:
      // On one stage both placements are the same, and kInterleaved is used for both.
      if (stages > 1) s.placement = Placement::kV;
      detail::fill_zb_v(s);
      break;
    case ScheduleKind::kFile:
      throw UsageError("a schedule from a file is read, not made");
  }
  return s;
}

Pipeline pipeline_of(ScheduleKind kind, int chunks) {
  Pipeline p;
  p.schedule = kind;
  p.chunks = chunks;
  p.halves = kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbV;
  if (kind == ScheduleKind::kZbV) p.chunks = 2, p.placement = Placement::kV;
  return p;
}

bool has_halves(const Schedule& schedule) {
  for (const auto& order : schedule.order)
    for (const Action& a : order)
      if (a.kind == Pass::kBackwardInput || a.kind == Pass::kBackwardWeights) return true;
  return false;
}

double ideal_idle_share(ScheduleKind kind, int stages, int chunks, int micro_batches) {
  const double bubble = stages - 1, m = micro_batches;
  switch (kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1f1b:
    case ScheduleKind::kInterleaved:
      return bubble / (chunks * m + bubble);
    case ScheduleKind::kZbH1:
      return bubble / (3.0 * m + bubble);
    case ScheduleKind::kZbV:
      return bubble / (6.0 * m + bubble);
    case ScheduleKind::kFile:
      break;
  }
  throw UsageError("a schedule from a file has no ideal");
}

}  // namespace molen::program
