#include "plan/recompute.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "program/build.h"
#include "program/memory.h"

namespace molen::plan {
namespace {

std::vector<program::Recompute> candidates(const arch::Architecture& arch) {
  std::vector<program::Recompute> all{{}};
  for (const char* parts :
       {"activation", "attention", "attention,activation", "norm_up,activation", "attention,norm_up,activation",
        "norm_qkv,norm_up,activation", "norm_qkv,attention,norm_up,activation"})
    all.push_back(program::recompute_from_text(parts));
  std::int64_t layers = 0;  // that the last choice computes again
  for (std::int64_t every = arch.layers; every >= 1; --every) {
    const std::int64_t now = (arch.layers + every - 1) / every;
    if (now != layers) all.push_back(program::Recompute::full(every));
    layers = now;
  }
  return all;
}

program::Program built(const arch::Architecture& arch, program::Setting setting, const program::Recompute& recompute) {
  setting.recompute = recompute;
  return program::build(arch, setting);
}

Bytes peak_of(const arch::Architecture& arch, const program::Setting& setting, const program::Recompute& recompute) {
  return program::plan_memory(built(arch, setting, recompute)).peak;
}

}  // namespace

std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting) {
  program::Setting once = setting;  // each micro-batch costs the same
  once.global_batch = std::min<std::int64_t>(setting.global_batch, setting.micro_batch * setting.data_ranks());
  std::vector<RecomputeChoice> ladder;
  for (const program::Recompute& recompute : candidates(arch)) {
    RecomputeChoice choice{recompute, {}, {}};
    const program::Program p = built(arch, once, recompute);
    for (const program::Step& step : p.bodies.front().steps)
      if (const auto* c = std::get_if<program::Compute>(&step.op); c && c->pass == program::ComputePass::kRecompute) {
        choice.again += step.hardware_flops;
        choice.moved += step.moved;
      }
    const auto count = setting.micro_batches();
    choice.again = Flops(choice.again.value * static_cast<decltype(choice.again.value)>(count));
    choice.moved = Bytes(choice.moved.value * count);
    ladder.push_back(choice);
  }
  std::stable_sort(ladder.begin(), ladder.end(), [](const RecomputeChoice& a, const RecomputeChoice& b) {
    return std::tuple(a.again.value, a.moved.value) < std::tuple(b.again.value, b.moved.value);
  });
  return ladder;
}

RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget) {
  std::optional<RecomputeChoice> least;
  for (RecomputeChoice choice : recompute_ladder(arch, setting)) {
    choice.peak = peak_of(arch, setting, choice.recompute);
    if (choice.peak <= budget) return choice;
    if (!least || choice.peak < least->peak) least = choice;
  }
  throw UsageError(
      "no plan fits {} ({} bytes): the smallest, with recompute {}, needs {} ({} bytes) a rank; allow that much, or "
      "make "
      "batch.micro smaller or shard more",
      human(budget), budget.value, program::text_of(least->recompute), human(least->peak), least->peak.value);
}

}  // namespace molen::plan
