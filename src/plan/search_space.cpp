// The layouts of a search, and their lower bounds.
#include <algorithm>
#include <array>
#include <cmath>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "arch/tensor_parallel.h"
#include "plan/layouts.h"
#include "plan/search.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/schedule/schedule.h"
#include "program/values/optimizer.h"

namespace molen::plan {
namespace {

using program::ScheduleKind;

// Shorter sequences have no need of context ranks.
constexpr std::int64_t kLongSequence = 16384;

struct StageChoice {
  int stages, chunks;
  ScheduleKind schedule;
};

std::vector<StageChoice> stage_choices(const arch::Architecture& arch, int ranks) {
  std::vector<StageChoice> all{{1, 1, ScheduleKind::k1f1b}};
  for (int stages = 2; stages <= ranks && stages <= arch.layers; ++stages) {
    if (ranks % stages != 0) continue;
    all.push_back({stages, 1, ScheduleKind::k1f1b});
    all.push_back({stages, 1, ScheduleKind::kZbH1});
    if (std::int64_t{stages} * 2 <= arch.layers) all.push_back({stages, 2, ScheduleKind::kZbV});
    for (const int chunks : {2, 4, 8})
      if (std::int64_t{stages} * chunks <= arch.layers) all.push_back({stages, chunks, ScheduleKind::kInterleaved});
  }
  return all;
}

std::vector<std::pair<int, int>> sharding_choices(int data, int context, int data_in_node) {
  std::vector<std::pair<int, int>> all{{0, 1}};
  if (data * context == 1) return all;
  all.emplace_back(1, 1);
  for (const int zero : {2, 3}) {
    all.emplace_back(zero, data);
    if (data_in_node * context > 1 && data_in_node < data && data % data_in_node == 0)
      all.emplace_back(zero, data_in_node);
  }
  return all;
}

std::vector<program::Recompute> recompute_choices() {
  program::Recompute attention;
  attention.add(arch::Part::kAttention);
  return {{}, attention, program::Recompute::full()};
}

// Returns what else can be computed again where a layout computes `main` again.
std::optional<program::Recompute> partly(const program::Recompute& main) {
  if (main == program::Recompute::full()) return program::Recompute::full(2);
  if (!main.any()) return std::nullopt;
  program::Recompute more = main;
  for (const arch::Part part : {arch::Part::kNormQkv, arch::Part::kNormUp, arch::Part::kActivation}) more.add(part);
  return more;
}

// Returns what a layout can have on the host.
std::vector<program::Offload> offload_choices(const arch::Architecture& arch, const program::Optimizer& optimizer,
                                              const Candidate& main) {
  std::vector<program::Offload> all;
  const bool on_host = !optimizer.whole_matrices && !(optimizer.whole_parameters && main.tensor > 1);
  if (on_host) all.push_back({.optimizer = true});
  if (arch.layers > 1 && !main.recompute.any()) all.push_back({.activations = true});
  const bool gradients = !arch.tied || main.stages == 1 || main.schedule == ScheduleKind::kZbV;
  if (on_host && gradients && (main.zero == 0 || main.zero == 3))
    all.push_back({true, true, true, arch.layers > 1 && !main.recompute.any()});
  return all;
}

// Appends the variants of a layout that differ from it in one choice.
void add_single_variants(const arch::Architecture& arch, const program::Optimizer& optimizer, const Candidate& main,
                         std::vector<Candidate>& all) {
  const auto add = [&](const auto& change) {
    Candidate& variant = all.emplace_back(main);
    change(variant);
    variant.variant = true;
  };
  if (main.tensor > 1) {
    add([](Candidate& c) { c.sequence_parallel = false; });
    if (!arch.sparse()) add([](Candidate& c) { c.tensor_chunks = 2; });
  }
  if (main.context > 1) add([](Candidate& c) { c.context_form = program::ContextForm::kRing; });
  if (const auto recompute = partly(main.recompute)) add([&](Candidate& c) { c.recompute = *recompute; });
  for (const program::Offload& offload : offload_choices(arch, optimizer, main))
    add([&](Candidate& c) { c.offload = offload; });
}

// Appends a layout and the variants that move its communication.
void add_with_variants(const Candidate& main, std::int64_t layers, bool order_matters, std::vector<Candidate>& all) {
  const bool sharded = main.zero >= 2;
  const std::int64_t of_chunk = layers / (main.stages * main.chunks);
  for (const bool inside : {false, true})
    for (const std::int64_t units : {std::int64_t{1}, program::kHalfLayer, std::int64_t{2}})
      for (const int prefetch : {1, 2}) {
        if ((inside && !order_matters) || (!sharded && units != 1) || (units == 2 && of_chunk < 2)) continue;
        if (main.zero < 3 && prefetch != 1) continue;
        Candidate& variant = all.emplace_back(main);
        variant.unit_layers = units, variant.prefetch = prefetch, variant.stages_inside = inside;
        variant.variant = units != 1 || prefetch != 1 || inside;
      }
}

constexpr std::array kStagesInside{mesh::Axis::kDpReplicate, mesh::Axis::kDpShard, mesh::Axis::kEp,
                                   mesh::Axis::kPp,          mesh::Axis::kCp,      mesh::Axis::kTp};

}  // namespace

std::vector<Candidate> candidates_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                                     int local_ranks) {
  std::vector<Candidate> all;
  const auto recomputes = recompute_choices();
  const program::Optimizer& optimizer = program::optimizer_named(base.optimizer);
  for (const StageChoice& at : stage_choices(arch, ranks))
    for (const int tensor : arch::tensor_degrees(arch, local_ranks)) {
      if (local_ranks % tensor != 0 || ranks % (at.stages * tensor) != 0) continue;
      const int left = ranks / at.stages / tensor;
      for (int context = 1; context <= left && context <= 64; context *= 2) {
        if (context > 1 && (base.sequence < kLongSequence || base.sequence % (2 * context) != 0)) break;
        if (left % context != 0) break;
        const int data = left / context;
        if (base.global_batch % data != 0) continue;
        const std::int64_t share = base.global_batch / data;
        for (const auto& [zero, shards] :
             sharding_choices(data, context, std::max(1, local_ranks / (tensor * context))))
          for (std::int64_t micro = 1; micro <= 64 && share % micro == 0; micro *= 2)
            for (const program::Recompute& recompute : recomputes) {
              const Candidate main{tensor, at.stages,  at.chunks, context,     zero,
                                   shards, tensor > 1, micro,     at.schedule, recompute};
              const bool order_matters =
                  at.stages > 1 && data > 1 && tensor * context < local_ranks && local_ranks < ranks;
              add_with_variants(main, arch.layers, order_matters, all);
              add_single_variants(arch, optimizer, main, all);
            }
      }
    }
  return all;
}

std::string name_with_variant(const program::Setting& s) {
  std::string name = layout_of(s).name;
  if (s.unit_layers == program::kHalfLayer) name += ", units of half a layer";
  if (s.unit_layers > 1) name += fmt::format(", units of {} layers", s.unit_layers);
  if (s.prefetch != 1) name += fmt::format(", {} units ahead", s.prefetch);
  return name;
}

program::Setting setting_of(const Candidate& c, const program::Setting& base, int ranks) {
  using mesh::Axis;
  program::Setting s = base;
  s.mesh = mesh::kOne;
  s.mesh[Axis::kTp] = c.tensor, s.mesh[Axis::kPp] = c.stages, s.mesh[Axis::kCp] = c.context;
  const int data = ranks / (c.tensor * c.stages * c.context);
  s.mesh[Axis::kDpShard] = c.zero >= 2 ? c.shards : 1;
  s.mesh[Axis::kDpReplicate] = data / s.mesh[Axis::kDpShard];
  if (c.zero < 2) s.mesh[Axis::kDpShard] = data, s.mesh[Axis::kDpReplicate] = 1;
  s.zero = c.zero;
  s.sequence_parallel = c.sequence_parallel;
  s.tensor_chunks = c.tensor_chunks;
  s.context_form = c.context_form;
  s.offload = c.offload;
  s.micro_batch = c.micro_batch;
  s.pipeline = c.stages > 1 ? program::pipeline_of(c.schedule, c.chunks) : program::Pipeline{};
  s.recompute = c.recompute;
  s.unit_layers = c.unit_layers, s.prefetch = c.prefetch;
  s.order = c.stages_inside ? kStagesInside : mesh::kDefaultOrder;
  return s;
}

Bounds::Bounds(const arch::Architecture& arch, const program::Setting& base, int ranks,
               const sim::DescribedCosts& costs, const sim::Factors& factors, double attended)
    : arch_(arch), base_(base), ranks_(ranks), costs_(costs), factors_(factors) {
  const auto forward = [&](const arch::Architecture& a) {
    return arch::model_flops(a, base.sequence, base.sequence, arch::FlopsConvention::kCausal).value / 3.0;
  };
  // Two models that differ by a layer have FLOPs that differ by those of a layer.
  arch::Architecture more = arch;
  more.layers += 1;
  const double all = forward(arch);
  layer_flops_ = forward(more) - all;
  head_flops_ = std::max(0.0, all - layer_flops_ * static_cast<double>(arch.layers));
  // The scores and the weighted values of a layer take 2 h D S FLOPs a token, with half of the scores (formula_of).
  const auto sequence = static_cast<double>(base.sequence);
  layer_flops_ -= (1.0 - attended) * 2.0 * sequence * static_cast<double>(arch.query_size()) * sequence;
  down_share_ = 2.0 * static_cast<double>(base.sequence * arch.ffn * arch.hidden) / layer_flops_;
  parameters_ = static_cast<double>(arch::num_parameters(arch));
}

double Bounds::exchange_s(const Candidate& c) const {
  if (c.tensor == 1) return 0.0;
  const std::int64_t tokens = c.micro_batch * base_.sequence / c.context;  // of a rank
  const double rows = static_cast<double>(tokens),
               bytes = rows * static_cast<double>(arch_.hidden * size_of(base_.compute));
  const sim::DescribedCosts::Group group{c.tensor, std::min(c.tensor, costs_.cluster().node.devices), 1};
  const double once = c.sequence_parallel ? costs_.collective_seconds("all_gather", bytes, group) +
                                                costs_.collective_seconds("reduce_scatter", bytes, group)
                                          : costs_.collective_seconds("all_reduce", bytes, group);
  return once;
}

double Bounds::layer_s(const Candidate& c, bool forward) const {
  const double share = static_cast<double>(c.micro_batch) / (c.tensor * c.context);
  return (forward ? 1.0 : 2.0) * layer_flops_ * share / costs_.fastest_rate(size_of(base_.compute));
}

Bound Bounds::of(const Candidate& c) const {
  const int data = ranks_ / (c.tensor * c.stages * c.context);
  const std::int64_t of_a_rank = base_.global_batch / data / c.micro_batch;
  const double micro_batches = static_cast<double>(of_a_rank);
  const double layers = static_cast<double>(arch_.layers), stages = c.stages;
  const double head = 3.0 * head_flops_ * static_cast<double>(c.micro_batch) /
                      (c.tensor * c.context * costs_.fastest_rate(size_of(base_.compute)));
  const double forward = layer_s(c, true), backward = layer_s(c, false), exchange = exchange_s(c);
  // A layer's last product never runs again, because its result is the next layer's input.
  const double again = c.recompute == program::Recompute::full() ? forward * (1.0 - down_share_) : 0.0;
  // The first and the last exchange of an action may run beside the compute of another action. Those of a piece may run
  // beside the compute of the other one.
  const double chunks = stages * c.chunks;
  const double exchanges = c.tensor_chunks > 1 ? 0.0 : std::max(0.0, 2.0 * layers / chunks - 1.0);
  // The busiest stage works at least as long as the average one. A stage idles while earlier stages compute the first
  // chunk of the first micro-batch, and while they compute the last backward, which a backward in halves may fill.
  const double of_stage = ((forward + backward + again) * layers + 2.0 * exchanges * exchange * chunks + head) / stages;
  const double of_chunk = std::floor(layers / chunks);
  const bool halves = c.schedule == ScheduleKind::kZbH1 || c.schedule == ScheduleKind::kZbV;
  const double beside = c.tensor_chunks > 1 ? 0.0 : exchange;
  const double idle =
      (stages - 1.0) / 2.0 * of_chunk * (forward + 2.0 * beside + (halves ? 0.0 : backward + 2.0 * beside));
  Bound bound;
  bound.step_s = micro_batches * of_stage + idle;
  const cluster::Cluster& on = costs_.cluster();
  const double range = on.device.peak_power.value - on.device.idle_power.value;
  bound.energy_j = bound.step_s * (ranks_ * (on.device.idle_power.value + factors_.of("power_waiting") * range) +
                                   std::ceil(static_cast<double>(ranks_) / on.node.devices) * on.node.host_power.value);
  const double own = parameters_ / (c.tensor * stages), shards = c.shards * c.context;
  const double weights = size_of(base_.compute), gradients = 4.0;
  // The states that the optimizer has for each element of all parameters; others are left out.
  double states = base_.has_master() ? size_of(base_.master) : 0.0;
  for (const program::OptimizerState& state : program::optimizer_named(base_.optimizer).states)
    if (state.of == program::StateOf::kAll) states += 4.0;
  // A value of the host is on the device only while an op uses it, so it counts for nothing in this bound.
  const double weights_there = c.offload.parameters ? 0.0 : weights / (c.zero >= 3 ? shards : 1.0);
  const double gradients_there = c.offload.gradients ? 0.0 : gradients / (c.zero >= 2 ? shards : 1.0);
  const double states_there = c.offload.optimizer ? 0.0
                              : c.zero >= 2       ? states / shards
                              : c.zero == 1       ? states / (data * c.context)
                                                  : states;
  bound.memory_bytes = own * (weights_there + gradients_there + states_there);
  return bound;
}

std::vector<std::pair<std::string, Json>> keys_of(const Candidate& c, const program::Setting& s) {
  std::vector<std::pair<std::string, Json>> keys{
      {"parallel.tensor", c.tensor},   {"parallel.sequence", c.sequence_parallel},
      {"parallel.pipeline", c.stages}, {"parallel.context", c.context},
      {"batch.micro", c.micro_batch},  {"parallel.recompute", program::text_of(c.recompute)}};
  if (c.stages > 1) {
    keys.emplace_back("parallel.schedule", std::string(name_of(c.schedule)));
    keys.emplace_back("parallel.virtual_stages", c.chunks);
  }
  if (c.unit_layers != 1)
    keys.emplace_back("parallel.unit_layers",
                      c.unit_layers == program::kHalfLayer ? Json("half") : Json(c.unit_layers));
  if (c.prefetch != 1) keys.emplace_back("parallel.prefetch", c.prefetch);
  if (c.context_form == program::ContextForm::kRing) keys.emplace_back("parallel.context_form", "ring");
  if (c.tensor_chunks != 1) keys.emplace_back("parallel.tensor_chunks", c.tensor_chunks);
  if (c.offload.any()) {
    Json places = Json::array();
    for (const auto& [name, on_host] : program::kOffloads)
      if (c.offload.*on_host) places.push_back(std::string(name));
    keys.emplace_back("parallel.offload", std::move(places));
  }
  if (c.stages_inside) keys.emplace_back("parallel.order", Json::array({"dp-replicate", "dp-shard", "pp", "cp", "tp"}));
  if (c.zero < 2) {
    keys.emplace_back("parallel.zero", c.zero);
    return keys;
  }
  const bool hybrid = s.replicas() > 1;
  keys.emplace_back("parallel.sharding", hybrid ? (c.zero == 3 ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2")
                                                : (c.zero == 3 ? "FULL_SHARD" : "SHARD_GRAD_OP"));
  keys.emplace_back("parallel.data_shard", c.shards);
  if (hybrid) keys.emplace_back("parallel.data_replicate", s.replicas());
  return keys;
}

}  // namespace molen::plan
