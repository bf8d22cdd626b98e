#include "plan/recompute.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "program/build/build.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {

using Parts = std::vector<arch::Part>;

// Returns the subsets of `parts`, beginning with the empty one.
std::vector<Parts> subsets(const Parts& parts) {
  std::vector<Parts> all{{}};
  for (const arch::Part part : parts)
    for (std::size_t i = 0, before = all.size(); i < before; ++i) {
      all.push_back(all[i]);
      all.back().push_back(part);
    }
  return all;
}

// Returns the last `depth` parts of each run.
Parts ends_of(const std::vector<Parts>& runs, std::size_t depth) {
  Parts ends;
  for (const Parts& run : runs)
    ends.insert(ends.end(), run.end() - std::ptrdiff_t(std::min(depth, run.size())), run.end());
  return ends;
}

// Returns the candidates. Each combines a subset of the attention block's parts (all but the last part) with the last
// parts of each run of the MLP block. The activation, which is the last part of a run, comes first, since it alone
// needs no product.
std::vector<program::Recompute> candidates(const arch::Architecture& arch) {
  std::vector<program::Recompute> all;
  Parts attention;
  for (const Parts& run : again_in(arch, program::Standing::kAttentionBlock))
    attention.insert(attention.end(), run.begin(), run.end());
  if (!attention.empty()) attention.pop_back();
  const auto runs = again_in(arch, program::Standing::kMlpBlock);
  std::size_t deepest = 0;
  for (const Parts& run : runs) deepest = std::max(deepest, run.size());
  for (const Parts& before : subsets(attention))
    for (std::size_t depth = 0; depth <= deepest; ++depth) {
      program::Recompute& r = all.emplace_back();
      for (const arch::Part part : before) r.add(part);
      for (const arch::Part part : ends_of(runs, depth)) r.add(part);
    }
  std::int64_t layers = 0;  // layers that the last choice recomputes
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

std::vector<std::vector<arch::Part>> again_in(const arch::Architecture& arch, program::Standing block) {
  std::vector<Parts> runs;
  std::set<arch::Part> seen;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
    bool follows = false;  // whether the part before belongs to this run
    for (const arch::Part part : arch::parts_of_layer(arch, layer)) {
      const program::PartDeclaration& d = program::declaration_of(part);
      if (d.standing != block || !d.makes_values()) continue;
      const bool listed = d.computed_again() && seen.insert(part).second;
      if (listed && !follows) runs.emplace_back();
      if (listed) runs.back().push_back(part);
      follows = listed;
    }
  }
  return runs;
}

std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file) {
  program::Setting once = setting;  // one micro-batch is enough, since each costs the same
  if (!setting.pipelined())
    once.global_batch = std::min<std::int64_t>(setting.global_batch, setting.micro_batch * setting.data_ranks());
  const auto count = setting.micro_batches() / once.micro_batches();
  std::vector<RecomputeChoice> ladder;
  for (const program::Recompute& recompute : candidates(arch)) {
    RecomputeChoice choice{recompute, {}, {}};
    for (const auto& p : built(arch, once, recompute, file))
      for (const auto& e : program::expand(p))
        if (const auto* c = std::get_if<program::Compute>(&e.step->op); c && c->pass == program::Pass::kRecompute) {
          choice.again += e.step->hardware_flops;
          choice.moved += e.step->moved;
          for (const program::EpilogueCost& epilogue : e.step->epilogues) choice.moved += epilogue.moved;
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
