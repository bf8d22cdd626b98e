#include "plan/static_check.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/work_at_once.h"
#include "program/build/build.h"
#include "program/ir/slots.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"
#include "sim/periods.h"

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

// Gives programs fewer micro-batches while it exists: schedules without most of the blocks that repeat each other, and
// the setting and the attributes that such a program has.
class Shortened {
 public:
  explicit Shortened(std::vector<program::Program>& stages) : stages_(stages) {
    constexpr std::size_t kOfOne = 8, kOfGroups = 3;  // blocks of one micro-batch, and of several
    const auto blocks = sim::blocks_of(stages);
    if (!blocks) return;
    const std::size_t kept = blocks->of_stage.front().micro_batches == 1 ? kOfOne : kOfGroups;
    if (blocks->count() <= kept) return;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      program::Program& p = stages[i];
      const program::Repeats& repeats = blocks->of_stage[i];
      const auto left_out = static_cast<std::int64_t>(blocks->count() - kept) * repeats.micro_batches;
      schedules_.push_back(std::exchange(p.schedule, program::with_blocks(p.schedule, repeats, kept)));
      batches_.push_back(p.setting.global_batch);
      set_batch(p, p.setting.global_batch - left_out * p.setting.micro_batch * p.setting.data_ranks());
    }
  }
  ~Shortened() {
    for (std::size_t i = 0; i < schedules_.size(); ++i) {
      stages_[i].schedule = std::move(schedules_[i]);
      set_batch(stages_[i], batches_[i]);
    }
  }
  Shortened(const Shortened&) = delete;
  Shortened& operator=(const Shortened&) = delete;

 private:
  static void set_batch(program::Program& p, std::int64_t global_batch) {
    p.setting.global_batch = global_batch;
    for (program::Body& body : p.bodies)
      for (program::Step& step : body.steps)
        if (step.attributes.positions > 0) step.attributes.positions = p.setting.positions();
  }

  std::vector<program::Program>& stages_;
  std::vector<std::vector<program::Instance>> schedules_;  // those of the stages, and their global batches
  std::vector<std::int64_t> batches_;
};

}  // namespace

void require_sound(std::vector<program::Program>& stages, int threads) {
  const Shortened shorter(stages);
  each_at_once(stages.size(), threads, [&](std::size_t i) { program::require_sound(stages[i], "the built program"); });
  if (const auto findings = program::check_world(stages); !findings.empty())
    throw Error("the pipeline's programs are refused: {}", findings.front().text);
}

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
