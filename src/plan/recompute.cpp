#include "plan/recompute.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "program/build/build.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {

std::vector<program::Recompute> candidates(const arch::Architecture& arch) {
  std::vector<program::Recompute> all{{}};
  for (const char* parts :
       {"activation", "attention", "attention,activation", "norm_up,activation", "attention,norm_up,activation",
        "norm_qkv,norm_up,activation", "norm_qkv,attention,norm_up,activation"})
    all.push_back(program::recompute_from_text(parts));
  // With norms of queries and keys, what attention reads is made by these norms, from what norm_qkv leaves.
  if (arch.norms_qk())
    for (const char* parts :
         {"qk_norm", "qk_norm,activation", "qk_norm,attention,norm_up,activation", "norm_qkv,qk_norm,activation",
          "norm_qkv,qk_norm,norm_up,activation", "norm_qkv,qk_norm,attention,norm_up,activation"})
      all.push_back(program::recompute_from_text(parts));
  std::int64_t layers = 0;  // that the last choice recomputes
  for (std::int64_t every = arch.layers; every >= 1; --every) {
    const std::int64_t now = (arch.layers + every - 1) / every;
    if (now != layers) all.push_back(program::Recompute::full(every));
    layers = now;
  }
  return all;
}

std::vector<program::Program> built(const arch::Architecture& arch, program::Setting setting,
                                    const program::Recompute& recompute, const program::Schedule* file) {
  setting.recompute = recompute;
  return program::build_stages(arch, setting, file);
}

}  // namespace

std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file) {
  program::Setting once = setting;  // each micro-batch costs the same
  if (!setting.pipelined())
    once.global_batch = std::min<std::int64_t>(setting.global_batch, setting.micro_batch * setting.data_ranks());
  const auto count = setting.micro_batches() / once.micro_batches();
  std::vector<RecomputeChoice> ladder;
  for (const program::Recompute& recompute : candidates(arch)) {
    RecomputeChoice choice{recompute, {}, {}};
    for (const auto& p : built(arch, once, recompute, file))
      for (const auto& e : program::expand(p))
        if (const auto* c = std::get_if<program::Compute>(&e.step->op);
            c && c->pass == program::ComputePass::kRecompute) {
          choice.again += e.step->hardware_flops;
          choice.moved += e.step->moved;
        }
    choice.again = Flops(choice.again.value * static_cast<decltype(choice.again.value)>(count));
    choice.moved = Bytes(choice.moved.value * count);
    ladder.push_back(choice);
  }
  std::stable_sort(ladder.begin(), ladder.end(), [](const RecomputeChoice& a, const RecomputeChoice& b) {
    return std::tuple(a.again.value, a.moved.value) < std::tuple(b.again.value, b.moved.value);
  });
  return ladder;
}

RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget,
                                 const program::Schedule* file) {
  std::optional<RecomputeChoice> least;
  for (RecomputeChoice choice : recompute_ladder(arch, setting, file)) {
    choice.peak = program::peak_of(built(arch, setting, choice.recompute, file));
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
