#include "plan/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "base/set_cover.h"
#include "base/suggest.h"
#include "plan/recompute.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/schedule/schedule.h"

namespace molen::plan {
namespace {

struct Sharding {
  std::string strategy;
  int zero, shards, replicas;
  bool own_over_dp;
  std::string choice() const { return strategy + (own_over_dp ? ", optimizer over all" : ""); }
  std::string text() const {
    if (replicas == 1 || zero < 2) return strategy;
    return fmt::format("{} {} x {}{}", strategy, replicas, shards, own_over_dp ? ", optimizer over all" : "");
  }
};

std::vector<Sharding> shardings_of(int ranks) {
  std::vector<Sharding> all{{"NO_SHARD", 0, ranks, 1, false}};
  if (ranks == 1) return all;
  all.push_back({"ZERO1", 1, ranks, 1, false});
  all.push_back({"SHARD_GRAD_OP", 2, ranks, 1, false});
  all.push_back({"FULL_SHARD", 3, ranks, 1, false});
  for (int shards = 2; shards < ranks; ++shards) {
    if (ranks % shards != 0) continue;
    for (const bool own : {false, true}) {
      all.push_back({"HYBRID_SHARD", 3, shards, ranks / shards, own});
      all.push_back({"HYBRID_SHARD_ZERO2", 2, shards, ranks / shards, own});
    }
  }
  return all;
}

// How the ranks of one replica share each layer and each sequence.
struct Grid {
  int tensor = 1;
  bool rows = false;  // sequence parallelism
  int context = 1;
  program::ContextForm form = program::ContextForm::kGather;
  std::int64_t chunks = 1;  // pieces of the rows
  int experts = 1;          // expert ranks
  std::int64_t tiles = 1;   // tiles into which the experts of a rank are cut
  std::string text() const { return layer_text() + context_text() + experts_text(); }
  std::string layer_text() const {
    if (tensor == 1) return "";
    return fmt::format(", tp {}{}{}", tensor, rows ? " with sequence parallelism" : "",
                       chunks > 1 ? fmt::format(" in {} pieces", chunks) : "");
  }
  std::string experts_text() const {
    if (experts == 1) return "";
    return fmt::format(", ep {}{}", experts, tiles > 1 ? fmt::format(" in {} tiles", tiles) : "");
  }
  std::string context_text() const { return context == 1 ? "" : fmt::format(", cp {} {}", context, name_of(form)); }
};

// Returns the grids. Rows stay whole, or are cut into the configuration's number of pieces; the experts of a rank stay
// together, or are cut into the configuration's number of tiles.
std::vector<Grid> grids_of(const arch::Architecture& arch, const program::Setting& base, int ranks) {
  std::vector<Grid> grids;
  for (const int tensor : arch::tensor_degrees(arch, ranks))
    for (int context = 1; context * tensor <= ranks; ++context) {
      if (ranks % (tensor * context) != 0 || base.sequence % (context == 1 ? 1 : 2 * context) != 0) continue;
      for (const auto form : {program::ContextForm::kGather, program::ContextForm::kRing}) {
        if (context == 1 && form == program::ContextForm::kRing) continue;
        grids.push_back({tensor, false, context, form});
        if (tensor > 1) grids.push_back({tensor, true, context, form});
        if (tensor > 1 && base.tensor_chunks > 1) grids.push_back({tensor, true, context, form, base.tensor_chunks});
      }
    }
  const std::size_t without = grids.size();
  for (int experts = 2; arch.sparse() && experts <= ranks; ++experts)
    for (std::size_t i = 0; i < without && arch.sparse_experts().count % experts == 0; ++i) {
      if (ranks % (grids[i].tensor * grids[i].context * experts) != 0) continue;
      Grid grid = grids[i];
      grid.experts = experts;
      grids.push_back(grid);
      grid.tiles = base.expert_tiles;
      if (grid.tiles > 1 && grid.tiles <= arch.sparse_experts().count / experts) grids.push_back(grid);
    }
  return grids;
}

// How the ranks of one replica share the layers.
struct Stages {
  program::Pipeline pipeline;
  int count = 1;
  std::string text() const {
    if (count == 1) return "";
    return fmt::format(", pp {} {}{}{}", count, name_of(pipeline.schedule),
                       pipeline.chunks > 1 ? fmt::format(" x {}", pipeline.chunks) : "",
                       pipeline.layers.empty() ? "" : fmt::format(" of {} layers", fmt::join(pipeline.layers, "+")));
  }
};

// Returns every schedule that is built, on every number of stages for which the model has enough layers.
std::vector<Stages> stages_of(const arch::Architecture& arch, int ranks) {
  using program::ScheduleKind;
  std::vector<Stages> all{{}};
  for (int count = 2; count <= ranks; ++count) {
    if (ranks % count != 0) continue;
    for (const auto& [kind, chunks] : {std::pair{ScheduleKind::kGpipe, 1},
                                       {ScheduleKind::k1f1b, 1},
                                       {ScheduleKind::kInterleaved, 2},
                                       {ScheduleKind::kZbH1, 1},
                                       {ScheduleKind::kZbV, 2}})
      if (std::int64_t{count} * chunks <= arch.layers) all.push_back({program::pipeline_of(kind, chunks), count});
  }
  return all;
}

// Returns three choices: nothing, everything, and some parts of every second layer. The last mixes layers that keep
// their values with layers that do not. Its parts are attention and the parts of the MLP or of the experts.
std::vector<program::Recompute> recomputes(const arch::Architecture& arch) {
  program::Recompute some;
  some.every = 2;
  for (const auto block : {program::Standing::kAttentionBlock, program::Standing::kMlpBlock})
    for (const auto& run : again_in(arch, block))
      for (const arch::Part part : run)
        if (block == program::Standing::kMlpBlock || program::declaration_of(part).mixes_positions()) some.add(part);
  return {{}, program::Recompute::full(), some};
}

// Returns no offload, and the configuration's offload.
std::vector<program::Offload> offloads(const program::Setting& base) {
  if (base.offload.any()) return {{}, base.offload};
  return {{}};
}

std::string text(const program::Offload& offload) {
  return offload.any() ? fmt::format(", {} on the host", program::text_of(offload)) : "";
}

std::string text(const program::Recompute& recompute) {
  if (!recompute.any()) return "";
  if (recompute == program::Recompute::full()) return ", recompute";
  return ", recompute " + program::text_of(recompute);
}

std::string text(const std::array<mesh::Axis, mesh::kAxes>& order) {
  return order == mesh::kDefaultOrder ? "" : ", order " + mesh::text_of(order);
}

Sharding sharding_of(const program::Setting& s) {
  static constexpr std::array kPlain{"NO_SHARD", "ZERO1", "SHARD_GRAD_OP", "FULL_SHARD"};
  const bool hybrid = s.replicas() > 1 && s.zero >= 2;
  const std::string strategy = !hybrid       ? kPlain.at(static_cast<std::size_t>(s.zero))
                               : s.zero == 3 ? "HYBRID_SHARD"
                                             : "HYBRID_SHARD_ZERO2";
  return {strategy, s.zero, s.shards(), s.replicas(), s.own_over_dp};
}

// Returns sizes of micro-batches with and without accumulation: the configuration's size, and all sequences that a rank
// has in a step or, when the two are the same, one sequence.
std::vector<std::int64_t> micro_batches(const program::Setting& s, bool one_sequence) {
  const std::int64_t whole = (s.global_batch + s.data_ranks() - 1) / s.data_ranks();
  std::vector<std::int64_t> all{s.micro_batch};
  const auto add = [&](std::int64_t micro) {
    if (std::find(all.begin(), all.end(), micro) == all.end()) all.push_back(micro);
  };
  add(s.micro_batch == whole ? 1 : whole);
  if (one_sequence) add(1);
  return all;
}

}  // namespace

const std::vector<std::string>& strategies() {
  static const std::vector<std::string> kNames{"NO_SHARD",   "ZERO1",        "SHARD_GRAD_OP",
                                               "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  return kNames;
}

std::vector<std::string> choices_of(const program::Setting& s) {
  return {sharding_of(s).choice(),
          Grid{s.tensor_ranks(), s.sequence_parallel, 1, {}, s.tensor_chunks}.layer_text(),
          Grid{1, false, s.context_ranks(), s.context_form}.context_text(),
          Grid{.experts = s.expert_ranks(), .tiles = s.expert_tiles}.experts_text(),
          Stages{s.pipeline, s.stages()}.text(),
          text(s.recompute),
          text(s.offload),
          s.micro_batches() > 1 ? fmt::format("micro {}", s.micro_batch) : "one micro-batch"};
}

Layout layout_of(const program::Setting& s) {
  const Sharding sharding = sharding_of(s);
  const Grid grid{s.tensor_ranks(), s.sequence_parallel, s.context_ranks(), s.context_form,
                  s.tensor_chunks,  s.expert_ranks(),    s.expert_tiles};
  return {fmt::format("{}{}{}{}{}{}{}", sharding.text(), grid.text(), Stages{s.pipeline, s.stages()}.text(),
                      text(s.recompute), text(s.offload), text(s.order),
                      s.micro_batches() > 1 ? fmt::format(", {} micro-batches", s.micro_batches()) : ""),
          sharding.strategy, s, choices_of(s)};
}

std::vector<Layout> layouts_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                               const std::vector<std::string>& wanted, bool one_sequence) {
  for (const auto& name : wanted)
    if (std::find(strategies().begin(), strategies().end(), name) == strategies().end())
      throw UsageError("--layouts: unknown layout '{}'{}", name, did_you_mean(name, strategies()));
  std::vector<std::pair<program::Recompute, program::Offload>> variants;
  for (const program::Recompute& recompute : recomputes(arch))
    for (const program::Offload& offload : offloads(base)) variants.emplace_back(recompute, offload);
  std::vector<Layout> layouts;
  const auto add = [&](const Stages& stages, const Grid& grid, const Sharding& sharding) {
    // Each sharding group has whole sequences, and all experts.
    if (sharding.shards % (grid.context * grid.experts) != 0) return;
    program::Setting s = base;
    s.mesh[mesh::Axis::kPp] = stages.count;
    s.pipeline = stages.pipeline;
    s.mesh[mesh::Axis::kTp] = grid.tensor;
    s.sequence_parallel = grid.rows;
    s.tensor_chunks = grid.chunks;
    s.mesh[mesh::Axis::kCp] = grid.context;
    s.context_form = grid.form;
    s.mesh[mesh::Axis::kEp] = grid.experts;
    s.expert_tiles = grid.tiles;
    s.mesh[mesh::Axis::kDpShard] = sharding.shards / (grid.context * grid.experts);
    s.mesh[mesh::Axis::kDpReplicate] = sharding.replicas;
    s.zero = sharding.zero;
    s.own_over_dp = sharding.own_over_dp;
    for (const std::int64_t micro : micro_batches(s, one_sequence))
      for (const auto& [recompute, offload] : variants) {
        program::Setting with = s;
        with.micro_batch = micro;
        with.recompute = recompute;
        with.offload = offload;
        if ((with.sharded_rows() && with.tokens() / with.tensor_chunks < grid.tensor) ||
            program::offload_refused(arch, with) || program::chunks_refused(arch, with) ||
            program::optimizer_refused(with) ||
            program::kernels_refused(with.kernels_of(arch::Part::kAttention), arch::Part::kAttention,
                                     attention_request(with, arch, false)))
          continue;
        layouts.push_back(layout_of(with));
      }
  };
  for (const Stages& stages : stages_of(arch, ranks))
    for (const Grid& grid : grids_of(arch, base, ranks / stages.count))
      for (const Sharding& sharding : shardings_of(ranks / stages.count / grid.tensor))
        if (wanted.empty() || std::find(wanted.begin(), wanted.end(), sharding.strategy) != wanted.end())
          add(stages, grid, sharding);
  if (layouts.empty() && wanted.empty()) throw UsageError("{} has no layout of {} ranks", arch.name, ranks);
  if (layouts.empty()) throw UsageError("--layouts: none of these is a layout of {} ranks", ranks);
  if (base.tensor_chunks > 1 &&
      std::none_of(layouts.begin(), layouts.end(), [](const Layout& l) { return l.setting.rows_in_pieces(); }))
    throw UsageError("parallel.tensor_chunks: no layout of {} ranks has rows for {} pieces", ranks, base.tensor_chunks);
  if (base.expert_tiles > 1 &&
      std::none_of(layouts.begin(), layouts.end(), [](const Layout& l) { return l.setting.expert_tiles > 1; }))
    throw UsageError("parallel.expert_tiles: no layout of {} ranks has experts for {} tiles", ranks, base.expert_tiles);
  return layouts;
}

bool share_node(const program::Setting& s, mesh::Axes axes, int local_ranks) {
  const mesh::Mesh grid(s.mesh, s.ranks(), s.order);
  for (int rank = 0; rank < s.ranks(); ++rank) {
    if (grid.position(rank, axes) != 0) continue;
    const std::vector<int> group = grid.group(rank, axes);
    if (group.front() / local_ranks != group.back() / local_ranks) return false;
  }
  return true;
}

std::vector<Layout> within_nodes(std::vector<Layout> layouts, int local_ranks) {
  // Many layouts share few grids.
  std::map<std::pair<std::array<int, mesh::kAxes>, std::array<mesh::Axis, mesh::kAxes>>, bool> known;
  std::erase_if(layouts, [&](const Layout& l) {
    if (local_ranks % l.setting.tensor_ranks() != 0) return true;
    const auto [found, fresh] = known.try_emplace({l.setting.mesh.values, l.setting.order});
    if (fresh) found->second = share_node(l.setting, mesh::Axis::kTp, local_ranks);
    return !found->second;
  });
  return layouts;
}

namespace {

// Numbers the values of choices. A value of one choice is not that of another which reads alike.
class ChoiceNumbers {
 public:
  std::uint64_t of(std::size_t choice, const std::string& value) {
    return numbers_.emplace(std::pair(choice, value), numbers_.size()).first->second;
  }

 private:
  std::map<std::pair<std::size_t, std::string>, std::uint64_t> numbers_;
};

// Returns the pairs of values that a layout has, as two numbers in one. There are thousands of layouts with dozens of
// pairs, whose texts took a seventh of the time of `molen verify --static --cover pairs`.
std::vector<std::uint64_t> pairs_of(const Layout& layout, ChoiceNumbers& numbers) {
  std::vector<std::uint64_t> values, pairs;
  for (std::size_t i = 0; i < layout.choices.size(); ++i) values.push_back(numbers.of(i, layout.choices[i]));
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t k = i + 1; k < values.size(); ++k) pairs.push_back(values[i] << 32U | values[k]);
  return pairs;
}

}  // namespace

std::vector<Layout> covering_pairs(const std::vector<Layout>& layouts) {
  ChoiceNumbers numbers;
  std::vector<std::vector<std::uint64_t>> pairs;
  for (const Layout& l : layouts) pairs.push_back(pairs_of(l, numbers));
  std::vector<Layout> few;
  for (const std::size_t i : set_cover(pairs)) few.push_back(layouts[i]);
  return few;
}

}  // namespace molen::plan
