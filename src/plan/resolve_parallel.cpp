#include "plan/resolve_parallel.h"

#include <algorithm>
#include <numeric>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "plan/layouts.h"
#include "program/build/build.h"

namespace molen::plan {
namespace {

using config::Config;

bool is_hybrid(const Config& c) {
  return c.parallel.sharding && c.parallel.sharding->rfind("HYBRID", 0) == 0;
}

// Returns "1, 2, 4": the tensor degrees that divide the ranks of a node and fit the model.
std::string degrees_text(const arch::Architecture& arch, const Machine& machine) {
  std::string text;
  for (const int n : arch::tensor_degrees(arch, machine.local_ranks))
    if (machine.local_ranks % n == 0 && machine.ranks % n == 0)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", n);
  return text;
}

// Returns "; 1, 2 and 4 do": the numbers from 1 to `most` that divide `most` and satisfy `fits`.
template <class Fits>
std::string fitting(std::int64_t most, Fits fits) {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 1; n <= most; ++n)
    if (most % n == 0 && fits(n)) all.push_back(n);
  if (all.size() < 2) return all.empty() ? "; none does" : fmt::format("; only {} does", all[0]);
  const std::int64_t last = all.back();
  all.pop_back();
  return fmt::format("; {} and {} do", fmt::join(all, ", "), last);
}

void resolve_tensor(const Config& c, const arch::Architecture& arch, const Machine& machine, program::Setting& s) {
  const auto& p = c.parallel;
  const int n = static_cast<int>(p.tensor);
  if (n > 1 && arch.qk_norm == arch::QkNorm::kAll)
    throw UsageError(
        "{}: {} ranks have different heads, and model.qk_norm = \"all\" takes one norm over all of them, which is not "
        "implemented; parallel.tensor = 1 trains this model",
        c.where("parallel.tensor"), n);
  const auto degrees = arch::tensor_degrees(arch, n);
  if (degrees.empty() || degrees.back() != n)
    throw UsageError("{}: {} ranks cannot share {} heads, FFN {} and vocabulary {}; these degrees fit: {}",
                     c.where("parallel.tensor"), n, arch.heads, arch.ffn, arch.vocabulary, degrees_text(arch, machine));
  if (machine.ranks % n != 0)
    throw UsageError("{}: {} does not divide the world of {} ranks; these degrees fit: {}", c.where("parallel.tensor"),
                     n, machine.ranks, degrees_text(arch, machine));
  if (machine.local_ranks % n != 0)
    throw UsageError("{}: groups of {} do not lie within a node of {} ranks; these degrees fit: {}",
                     c.where("parallel.tensor"), n, machine.local_ranks, degrees_text(arch, machine));
  if (p.sequence && n == 1)
    throw UsageError("{}: sequence parallelism cuts rows over tensor ranks; parallel.tensor is 1",
                     c.where("parallel.sequence"));
  s.mesh[mesh::Axis::kTp] = n;
  if (p.tensor_chunks > 1 && !p.sequence)
    throw UsageError("{}: rows can travel in pieces only with sequence parallelism; set parallel.sequence = true",
                     c.where("parallel.tensor_chunks"));
  s.sequence_parallel = p.sequence;
  s.tensor_chunks = p.tensor_chunks;
  std::string order;
  for (std::string name : p.order) {
    std::replace(name.begin(), name.end(), '-', '_');
    order += (order.empty() ? "" : ",") + name;
  }
  s.order = mesh::parse_order(order);
}

void resolve_context(const Config& c, const Machine& machine, program::Setting& s) {
  const std::int64_t n = c.parallel.context, sequence = c.data.sequence_length;
  const bool ring = c.parallel.context_form == "ring";
  if (n == 1 && ring)
    throw UsageError(
        "{}: \"ring\" passes keys and values between context ranks, but parallel.context is 1; raise it, "
        "or set parallel.context_form = \"gather\"",
        c.where("parallel.context_form"));
  if (n == 1) return;
  if (machine.ranks % (n * c.parallel.tensor * c.parallel.pipeline) != 0)
    throw UsageError("{}: {} ranks for each sequence{}{} do not divide the world of {} ranks{}",
                     c.where("parallel.context"), n,
                     c.parallel.tensor > 1 ? fmt::format(" x tensor {}", c.parallel.tensor) : "",
                     c.parallel.pipeline > 1 ? fmt::format(" x pipeline {}", c.parallel.pipeline) : "", machine.ranks,
                     fitting(machine.ranks / (c.parallel.tensor * c.parallel.pipeline),
                             [&](std::int64_t m) { return m == 1 || sequence % (2 * m) == 0; }));
  if (sequence % (2 * n) != 0)
    throw UsageError(
        "{}: {} ranks have two pieces each of every sequence; {} tokens ({}) do not divide by {}, {} tokens do",
        c.where("parallel.context"), n, sequence, c.where("data.sequence_length"), 2 * n,
        (sequence + 2 * n - 1) / (2 * n) * (2 * n));
  s.mesh[mesh::Axis::kCp] = static_cast<int>(n);
  s.context_form = ring ? program::ContextForm::kRing : program::ContextForm::kGather;
}

void resolve_expert_ranks(const Config& c, const arch::Architecture& arch, const Machine& machine,
                          program::Setting& s) {
  const auto& p = c.parallel;
  const std::int64_t n = p.expert;
  if (p.expert_tiles > 1 && !arch.sparse())
    throw UsageError("{}: {} tiles of the experts of sparse layers, which this model does not have (model.experts)",
                     c.where("parallel.expert_tiles"), p.expert_tiles);
  if (n == 1 && p.expert_tiles > 1)
    throw UsageError("{}: no expert ranks exchange rows in {} tiles; set parallel.expert above 1",
                     c.where("parallel.expert_tiles"), p.expert_tiles);
  if (n == 1) return;
  if (!arch.sparse())
    throw UsageError("{}: {} ranks share the experts of sparse layers, which this model does not have (model.experts)",
                     c.where("parallel.expert"), n);
  const std::int64_t left = machine.ranks / (p.tensor * p.pipeline * p.context);
  const auto fits = [&](std::int64_t m) { return arch.sparse_experts().count % m == 0; };
  if (left % n != 0)
    throw UsageError("{}: {} expert ranks do not divide the {} rank{} that the other axes leave of {}{}",
                     c.where("parallel.expert"), n, left, left == 1 ? "" : "s", machine.ranks, fitting(left, fits));
  if (!fits(n))
    throw UsageError("{}: {} ranks cannot share {} experts evenly{}", c.where("parallel.expert"), n,
                     arch.sparse_experts().count, fitting(left, fits));
  const std::int64_t own = arch.sparse_experts().count / n;
  if (p.expert_tiles > own)
    throw UsageError("{}: the {} experts that a rank has of each layer cannot be cut into {} tiles",
                     c.where("parallel.expert_tiles"), own, p.expert_tiles);
  s.mesh[mesh::Axis::kEp] = static_cast<int>(n);
  s.expert_tiles = p.expert_tiles;
}

void resolve_pipeline(const Config& c, const arch::Architecture& arch, const Machine& machine, program::Setting& s) {
  const auto& p = c.parallel;
  const auto stages = static_cast<int>(p.pipeline);
  if (stages == 1) {
    if (p.virtual_stages != 1)
      throw UsageError("{}: {} chunks of a stage; parallel.pipeline is 1", c.where("parallel.virtual_stages"),
                       p.virtual_stages);
    if (p.schedule != "1f1b")
      throw UsageError("{}: \"{}\" orders pipeline stages; parallel.pipeline is 1", c.where("parallel.schedule"),
                       p.schedule);
    if (!p.stage_layers.empty())
      throw UsageError(
          "{}: the list has {} count{} of layers, but parallel.pipeline is 1, so there are no stages to divide them "
          "over; leave the list out, or raise parallel.pipeline",
          c.where("parallel.stage_layers"), p.stage_layers.size(), p.stage_layers.size() == 1 ? "" : "s");
    return;
  }
  if (machine.ranks % (stages * p.tensor) != 0)
    throw UsageError("{}: {} stages{} do not divide the world of {} ranks{}", c.where("parallel.pipeline"), stages,
                     p.tensor > 1 ? fmt::format(" of {} tensor ranks", p.tensor) : "", machine.ranks,
                     fitting(machine.ranks / p.tensor, [&](std::int64_t n) { return n <= arch.layers; }));
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline.chunks = static_cast<int>(p.virtual_stages);
  if (const auto file = read_schedule(c)) {
    s.pipeline.schedule = program::ScheduleKind::kFile;
    s.pipeline.placement = file->placement;
    s.pipeline.chunks = file->chunks;
    s.pipeline.halves = program::has_halves(*file);
    if (file->stages != stages || (p.virtual_stages > 1 && file->chunks != p.virtual_stages))
      throw UsageError(
          "{}: the file has {} stages of {} chunks, but parallel.pipeline is {} and parallel.virtual_stages is {}",
          c.where("parallel.schedule"), file->stages, file->chunks, stages, p.virtual_stages);
  } else {
    const auto chunks = s.pipeline.chunks;
    if (p.schedule == "interleaved" && chunks == 1)
      throw UsageError(
          "{}: interleaved stages need several chunks each, but parallel.virtual_stages is 1; raise it, or choose 1f1b",
          c.where("parallel.schedule"));
    s.pipeline = program::pipeline_of(program::parse_schedule_kind(p.schedule), chunks);
    if (chunks != 1 && chunks != s.pipeline.chunks)
      throw UsageError("{}: {} has {} chunks a stage, not {}", c.where("parallel.virtual_stages"), p.schedule,
                       s.pipeline.chunks, chunks);
  }
  const int chunks = stages * s.pipeline.chunks;
  if (chunks > arch.layers)
    throw UsageError(
        "{}: {} stages of {} chunk{} need a layer each; the model has {}{}", c.where("parallel.pipeline"), stages,
        s.pipeline.chunks, s.pipeline.chunks == 1 ? "" : "s", arch.layers,
        fitting(machine.ranks / p.tensor, [&](std::int64_t n) { return n * s.pipeline.chunks <= arch.layers; }));
  if (p.stage_layers.empty()) return;
  const auto sum = std::accumulate(p.stage_layers.begin(), p.stage_layers.end(), std::int64_t{0});
  if (static_cast<int>(p.stage_layers.size()) != chunks || sum != arch.layers)
    throw UsageError(
        "{}: the list has {} counts and {} layers in all, but {} stages of {} chunk{} need {} counts, and the model "
        "has {} layers; a balanced list is [{}]",
        c.where("parallel.stage_layers"), p.stage_layers.size(), sum, stages, s.pipeline.chunks,
        s.pipeline.chunks == 1 ? "" : "s", chunks, arch.layers,
        fmt::join(program::balanced_layers(arch, s, chunks), ", "));
  s.pipeline.layers = p.stage_layers;
}

// Sets the data-parallel axes of the rank grid.
void resolve_mesh(const Config& c, const Machine& machine, program::Setting& s) {
  const auto& p = c.parallel;
  const std::int64_t ranks = machine.ranks / (p.tensor * p.pipeline * p.context * p.expert),
                     replicate = p.data_replicate;  // data-parallel ranks
  const auto any = [](std::int64_t) { return true; };
  if (ranks % replicate != 0)
    throw UsageError("{}: {} groups cannot be made of {} rank{}{}", c.where("parallel.data_replicate"), replicate,
                     ranks, ranks == 1 ? "" : "s", fitting(ranks, any));
  // A group is one node unless the configuration gives another size.
  const bool by_node = is_hybrid(c) && replicate == 1 && !p.data_shard;
  const std::int64_t of_node = machine.local_ranks / (p.tensor * p.context * p.expert);
  if (by_node && machine.local_ranks % (p.tensor * p.context * p.expert) != 0)
    throw UsageError(
        "{}: {} shards within a node of {} ranks, which {} tensor x {} context{} ranks do not divide; "
        "parallel.data_shard says other groups",
        c.where("parallel.sharding"), *p.sharding, machine.local_ranks, p.tensor, p.context,
        p.expert > 1 ? fmt::format(" x {} expert", p.expert) : "");
  const std::int64_t group = by_node ? std::min(of_node, ranks) : ranks / replicate;
  const std::int64_t shard = p.data_shard.value_or(group);
  const bool any_groups = is_hybrid(c) && replicate == 1;  // the number of groups follows from the ranks
  const std::int64_t copies = any_groups ? ranks / std::max<std::int64_t>(1, shard) : replicate;
  const auto shards_fit = [&](std::int64_t n) {
    return any_groups ? ranks == 1 || n * p.context * p.expert > 1 : n * replicate == ranks;
  };
  if (shard * copies != ranks)
    throw UsageError("{}: data_replicate {} x data_shard {}{} is not the world of {} ranks{}",
                     c.where(p.data_shard ? "parallel.data_shard" : "parallel.data_replicate"), copies, shard,
                     (p.expert > 1 ? fmt::format(" x expert {}", p.expert) : "") +
                         (p.context > 1 ? fmt::format(" x context {}", p.context) : "") +
                         (p.tensor > 1 ? fmt::format(" x tensor {}", p.tensor) : "") +
                         (p.pipeline > 1 ? fmt::format(" x pipeline {}", p.pipeline) : ""),
                     machine.ranks,
                     p.data_shard ? "; of shards" + fitting(ranks / replicate, shards_fit).substr(1) : "");
  if (p.sharding && !is_hybrid(c) && *p.sharding != "NO_SHARD" && copies > 1)
    throw UsageError("{}: {} shards over all data-parallel ranks; with {} copies (parallel.data_replicate) choose {}",
                     c.where("parallel.sharding"), *p.sharding, copies,
                     *p.sharding == "FULL_SHARD" ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2");
  if (is_hybrid(c) && ranks > 1 && shard * p.context * p.expert == 1)
    throw UsageError("{}: {} needs groups of more than one rank; set parallel.data_shard, or NO_SHARD",
                     c.where("parallel.sharding"), *p.sharding);
  s.mesh[mesh::Axis::kDpShard] = static_cast<int>(shard);
  s.mesh[mesh::Axis::kDpReplicate] = static_cast<int>(copies);
  s.own_over_dp = is_hybrid(c) && p.zero == 1 && copies > 1;
  if (by_node && !share_node(s, mesh::kShards, machine.local_ranks))
    throw UsageError(
        "{}: {} shards within a node of {} ranks, over which this order of axes spreads them; "
        "parallel.data_shard says other groups",
        c.where("parallel.order"), *p.sharding, machine.local_ranks);
  if (p.tensor > 1 && !share_node(s, mesh::Axis::kTp, machine.local_ranks))
    throw UsageError(
        "{}: this order of axes spreads groups of {} tensor ranks over nodes of {} ranks; with tp last they "
        "share one",
        c.where("parallel.order"), p.tensor, machine.local_ranks);
}

}  // namespace

// Maps PyTorch's names to ZeRO stages; the two hybrid names shard within groups and replicate across groups.
int zero_stage(const Config& c) {
  const auto& p = c.parallel;
  if (!p.sharding) return static_cast<int>(p.zero.value_or(0));
  if (*p.sharding == "NO_SHARD") return static_cast<int>(p.zero.value_or(0));
  return *p.sharding == "SHARD_GRAD_OP" || *p.sharding == "HYBRID_SHARD_ZERO2" ? 2 : 3;
}

void resolve_parallel(const Config& c, const arch::Architecture& arch, const Machine& machine, program::Setting& s) {
  resolve_tensor(c, arch, machine, s);
  resolve_pipeline(c, arch, machine, s);
  resolve_context(c, machine, s);
  resolve_expert_ranks(c, arch, machine, s);
  resolve_mesh(c, machine, s);
  s.prefetch = static_cast<int>(c.parallel.prefetch);
  s.zero = zero_stage(c);
  s.unit_layers = c.parallel.unit_layers;
  if (s.unit_layers > arch.layers)
    throw UsageError("{}: units of {} layers; the model has {}", c.where("parallel.unit_layers"), s.unit_layers,
                     arch.layers);
}

}  // namespace molen::plan
