#include "plan/static_check.h"

#include <algorithm>

#include "program/build/build.h"
#include "program/ir/slots.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"

namespace molen::plan {
namespace {

// The ops and the memory that each omitted micro-batch adds to a stage.
struct Repeated {
  std::int64_t ops = 0;
  Bytes memory;
};

Repeated repeated_of(const program::Program& p, std::int64_t micro_batches) {
  Repeated r;
  const std::int64_t middle = micro_batches / 2;
  for (const program::Instance& i : p.schedule)
    if (i.micro_batch == middle)
      r.ops += static_cast<std::int64_t>(p.bodies[static_cast<std::size_t>(i.body)].steps.size());
  // If the values of all built micro-batches are alive at once (GPipe), those of any number of micro-batches are.
  constexpr std::int64_t kAlign = 64;
  const program::Slots slots(p);
  for (std::size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].lifetime == program::Lifetime::kMicroBatch && p.buffers[b].place == program::Place::kDevice &&
        slots.count(static_cast<int>(b)) == micro_batches)
      r.memory += Bytes((p.buffers[b].bytes().value + kAlign - 1) / kAlign * kAlign);
  return r;
}

}  // namespace

std::int64_t repeating_micro_batches(const program::Setting& s) {
  using program::ScheduleKind;
  const std::int64_t all = s.micro_batches(), stages = s.stages();
  std::int64_t few = all;
  if (!s.pipelined()) {
    few = 4;  // the first, the last, and two consecutive ones between them
  } else {
    switch (s.pipeline.schedule) {
      case ScheduleKind::kGpipe:
        few = 4;
        break;
      case ScheduleKind::k1f1b:
      case ScheduleKind::kZbH1:
        few = stages + 3;  // more than the warm-up of the first stage
        break;
      case ScheduleKind::kInterleaved:
      case ScheduleKind::kZbV:
        if (all % stages == 0) few = 3 * stages;
        break;
      case ScheduleKind::kFile:
        break;
    }
  }
  return std::min(all, few);
}

StaticCheck check_statically(const arch::Architecture& arch, const program::Setting& setting) {
  StaticCheck check;
  check.micro_batches = repeating_micro_batches(setting);
  const std::int64_t left_out = setting.micro_batches() - check.micro_batches;
  program::Setting built = setting;
  if (left_out > 0) built.global_batch = check.micro_batches * setting.micro_batch * setting.data_ranks();
  const auto stages = program::build_stages(arch, built, nullptr, false);  // the check infers the types
  for (const auto& finding : program::check_world(stages)) check.findings.push_back(finding.text);
  for (const auto& p : stages) {
    for (const auto& finding : program::check(p)) check.findings.push_back(finding.text);
    const Repeated each = left_out > 0 ? repeated_of(p, check.micro_batches) : Repeated{};
    check.peak = std::max(check.peak, program::planned_peak(p).device + each.memory * left_out);
    check.ops = std::max(check.ops, p.num_ops() + each.ops * left_out);
  }
  return check;
}

}  // namespace molen::plan
