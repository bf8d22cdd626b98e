#include "plan/memory_need.h"

#include <algorithm>

#include "program/build/stage_by_stage.h"
#include "program/values/of_setting.h"
#include "program/values/optimizer.h"
#include "program/values/signature.h"
#include "program/values/value_memory.h"

namespace molen::plan {
namespace {

// Returns a setting with fewer micro-batches that has the same memory plan, so that the plan is made faster.
// Micro-batches between the first and the last run one body; two of them are kept, so that the edges from one to the
// next exist. In a pipeline more micro-batches may need more memory, so the setting is returned as it is.
program::Setting of_short_batch(program::Setting s) {
  constexpr std::int64_t kMicroBatches = 4;
  if (!s.pipelined())
    s.global_batch = std::min<std::int64_t>(s.global_batch, kMicroBatches * s.micro_batch * s.data_ranks());
  return s;
}

MemoryNeed need_of(const program::Program& p) {
  const program::PlannedPeak plan = program::planned_peak(p);
  return {plan.device, plan.host};
}

// Returns the memory that the stage keeps from step to step, a lower bound of every plan; builds no program.
MemoryNeed kept_by_stage(const arch::Architecture& arch, const program::Setting& s) {
  using program::Value;
  const program::Program p = program::describe(arch, s);
  std::vector<Value> kept{
      s.offload.parameters     ? Value::kParamHost
      : s.sharded_parameters() ? Value::kParamShard
                               : Value::kParam,
      s.offload.gradients     ? Value::kGradHost
      : s.sharded_gradients() ? Value::kGradShard
                              : Value::kGrad,
  };
  for (const program::OptimizerState& state : program::optimizer_named(s.optimizer).states) kept.push_back(state.value);
  if (s.has_master()) kept.push_back(Value::kMaster);
  MemoryNeed need;
  for (std::size_t u = 0; u < p.units.size(); ++u)
    for (const Value value : kept) {
      const program::Operand operand{value, static_cast<std::int64_t>(u)};
      Bytes& of = place_of(p, operand) == program::Place::kHost ? need.host : need.device;
      of += Bytes(elements_of(p, operand) * size_of(dtype_of(p, value)));
    }
  return need;
}

}  // namespace

std::vector<MemoryNeed> memory_needs(const arch::Architecture& arch, const program::Setting& setting,
                                     const program::Schedule* file) {
  std::vector<MemoryNeed> needs;
  program::build_each_stage(arch, of_short_batch(setting), file, false, [&](const program::Program& p) {
    needs.push_back(need_of(p));
    return true;
  });
  return needs;
}

MemoryNeed with_evaluation(const program::MemoryPlan& training, const program::MemoryPlan& evaluation) {
  const bool fits = evaluation.peak <= training.peak - training.persistent;
  return {training.peak + (fits ? Bytes(0) : evaluation.peak), training.host + evaluation.host};
}

MemoryNeed kept_need(const arch::Architecture& arch, const program::Setting& setting) {
  program::Setting s = setting;
  MemoryNeed most;
  for (s.pipeline.stage = 0; s.pipeline.stage < s.stages(); ++s.pipeline.stage)
    if (const MemoryNeed need = kept_by_stage(arch, s); need.total() > most.total()) most = need;
  return most;
}

std::optional<MemoryNeed> need_within(const arch::Architecture& arch, const program::Setting& setting,
                                      const MemoryRoom& room) {
  program::Setting s = of_short_batch(setting);
  for (s.pipeline.stage = 0; s.pipeline.stage < s.stages(); ++s.pipeline.stage)
    if (!room.holds(kept_by_stage(arch, s))) return std::nullopt;
  MemoryNeed most;
  bool held = true;
  program::build_each_stage(arch, s, nullptr, false, [&](const program::Program& p) {
    const MemoryNeed need = need_of(p);
    held = room.holds(need);
    if (need.total() > most.total()) most = need;
    return held;
  });
  return held ? std::optional(most) : std::nullopt;
}

}  // namespace molen::plan
