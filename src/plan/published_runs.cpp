#include "plan/published_runs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/suggest.h"
#include "plan/framework.h"
#include "plan/framework_memory.h"
#include "plan/runs_choices.h"
#include "program/build/build.h"
#include "program/ir/stages.h"
#include "program/memory/memory.h"
#include "sim/described_errors.h"
#include "sim/simulate.h"

namespace molen::plan {
namespace {

// The clusters whose devices tables name, the first of which has a device of the name.
constexpr std::array kMachines{"dgx-a100", "dgx-a100-40gb", "dgx-h100", "h100-hbm2e",     "dgx-h200", "dgx-2h",
                               "mi300x",   "gh200",         "frontier", "juwels-booster", "lumi-g",   "snellius-h100"};

// Megatron-LM makes the vocabulary divisible by this number times the tensor ranks.
constexpr std::int64_t kVocabularyOfRank = 128;

// A table may leave out a power limit: "V100-SXM-32GB" is described as "V100-SXM-32GB-450W".
std::string without_power_limit(const std::string& device) {
  const std::size_t dash = device.rfind('-');
  if (dash == std::string::npos || !device.ends_with('W') || dash + 2 >= device.size()) return device;
  const bool watts = std::all_of(device.begin() + static_cast<std::ptrdiff_t>(dash) + 1, device.end() - 1,
                                 [](unsigned char c) { return std::isdigit(c) != 0; });
  return watts ? device.substr(0, dash) : device;
}

cluster::Cluster described(const std::string& gpu) {
  std::vector<std::string> known;
  for (const char* name : kMachines) {
    cluster::Cluster c = cluster::find(name);
    if (c.device.name == gpu || without_power_limit(c.device.name) == gpu) return c;
    known.push_back(c.device.name);
  }
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw UsageError("gpu: unknown type '{}'{}; known: {}", gpu, did_you_mean(gpu, known), fmt::join(known, ", "));
}

program::Recompute recompute_of(const Run& run) {
  using arch::Part;
  program::Recompute r;
  const std::string& how = run.recompute.value_or("none");
  if (how == "full") return program::Recompute::full();
  if (how == "selective_layer") return program::Recompute::full(2);
  if (how == "selective_attention") r.add(Part::kAttention);
  // TorchTitan's policy keeps the results of every second product.
  if (how == "selective_op")
    for (const Part part : {Part::kNormUp, Part::kActivation}) r.add(part);
  return r;
}

void set_pipeline(const Run& run, const arch::Architecture& arch, program::Setting& s) {
  if (run.pp == 1) return;
  const int chunks = run.chunks.value_or(1), places = run.pp * chunks;
  s.pipeline =
      program::pipeline_of(chunks > 1 ? program::ScheduleKind::kInterleaved : program::ScheduleKind::k1f1b, chunks);
  if (run.ends_count_as_layers) {
    if ((arch.layers + 2) % places != 0)
      throw UsageError("pp_split: {} layers, embedding and output layer do not divide into {} equal parts", arch.layers,
                       places);
    s.pipeline.layers.assign(static_cast<std::size_t>(places), (arch.layers + 2) / places);
    --s.pipeline.layers.front(), --s.pipeline.layers.back();
  } else if (arch.layers % places == 0) {
    s.pipeline.layers.assign(static_cast<std::size_t>(places), arch.layers / places);
  }
}

FrameworkSetting framework_of(const Run& run) {
  return {.gradients_16bit = run.grad_dtype != "fp32",
          .fp8 = run.precision == "fp8",
          .compiled = run.compiled,
          .flash_attention = run.flash_attention,
          .overlap = run.overlap,
          .zero = zero_of(run.zero.value_or(0), run.pp),
          .vocabulary = run.vocabulary};
}

std::vector<program::Program> programs_of(const Run& run) {
  if (const auto why = too_large(run)) throw UsageError("{}", *why);
  const arch::Architecture a = architecture_of(run);
  auto programs = program::build_stages(a, setting_of(run, a), nullptr, false);
  set_streams(framework_of(run), programs);
  return programs;
}

double seconds_of(const std::vector<program::Timeline>& timelines, const sim::Costs& costs) {
  return sim::step_seconds(timelines) * (1.0 + costs.between_steps());
}

RunPrediction predict_filled(const Run& run, const cluster::Cluster& cluster, const sim::Factors& factors) {
  auto programs = programs_of(run);
  const FrameworkSetting framework = framework_of(run);
  RunPrediction out;
  if (cluster.device.name != run.gpu) out.chosen["gpu"] = cluster.device.name;
  // Tensor ranks overlap their exchanges in pieces of sharded rows.
  if (run.overlap.contains("tp") && run.tp > 1 && programs.front().setting.tensor_chunks == 1) {
    std::set<std::string> rest = run.overlap;
    rest.erase("tp");
    out.chosen["overlap"] = rest.empty() ? "none" : fmt::format("{}", fmt::join(rest, "+"));
  }
  const FrameworkMemory memory = memory_of(framework, programs, cluster.device.memory.value);
  out.allocator_bytes = memory.allocator, out.memory_bytes = memory.device;
  out.fits = memory.fits, out.memory_spread = factors.memory_spread(), out.device_bytes = cluster.device.memory.value;
  const program::Stages stages(std::move(programs));
  const sim::DescribedCosts costs(cluster, factors, costs_of(framework));
  const auto timelines = sim::simulate(stages, costs);
  out.step_s = seconds_of(timelines, costs);
  out.errors = sim::errors_of_step(stages, timelines, sim::DescribedErrors(cluster, factors, costs.framework()));
  const program::Setting& s = stages.program(0).setting;
  arch::Architecture as_stated = stages.program(0).arch;
  as_stated.vocabulary = run.vocabulary;  // the rows that make it divisible are no work of the model
  out.model_flops = arch::model_flops(as_stated, s.positions(), s.sequence, arch::FlopsConvention::kCausal).value;
  for (std::size_t i = 0; i < stages.size(); ++i)
    out.bubble_s =
        std::max(out.bubble_s, program::phase_seconds(stages.program(i).setting, stages.ops(i), timelines[i]).bubble_s);
  const std::size_t busiest = sim::busiest_stage(stages, timelines);
  for (std::size_t i = 0; i < stages.ops(busiest).size(); ++i) {
    const program::OpTime& time = timelines[busiest].ops[i];
    out.kinds_s[program::kind_of(stages.ops(busiest)[i].step->op)] += time.seconds() - time.waited_s;
  }
  for (const auto& [axis, stream] :
       {std::pair{"tp", program::Stream::kTpComm}, {"cp", program::Stream::kCpComm}, {"dp", program::Stream::kDpComm}})
    if (const double exposed = program::exposed_seconds(stages.ops(busiest), timelines[busiest], stream); exposed > 0.0)
      out.exposed_s[axis] = exposed;
  return out;
}

}  // namespace

arch::Architecture architecture_of(const Run& run) {
  arch::Architecture a;
  a.name = "run";
  const bool gated = run.mlp == "swiglu";
  a.family = gated ? arch::Family::kLlama : arch::Family::kGpt;
  a.layers = run.layers, a.hidden = run.hidden, a.ffn = run.ffn;
  a.heads = run.heads, a.kv_heads = run.kv_heads, a.head_dim = run.hidden / run.heads;
  const std::int64_t multiple = kVocabularyOfRank * run.tp;
  a.vocabulary = (run.vocabulary + multiple - 1) / multiple * multiple;
  a.max_sequence = run.sequence;
  a.tied = run.tied;
  if (!gated) {
    a.biases = true;
    a.norm = arch::Norm::kLayer;
    a.position = arch::Position::kLearned;
    a.activation = arch::Activation::kGeluTanh;
  }
  arch::validate(a);
  return a;
}

program::Setting setting_of(const Run& run, const arch::Architecture& arch) {
  using mesh::Axis;
  program::Setting s;
  s.mesh[Axis::kTp] = run.tp, s.mesh[Axis::kPp] = run.pp, s.mesh[Axis::kCp] = run.cp;
  const FrameworkSetting framework = framework_of(run);
  if (run.shard_group % run.cp != 0)
    throw UsageError("shard_group: {} ranks do not hold whole groups of cp = {}", run.shard_group, run.cp);
  const int shard = run.shard_group > 0 ? run.shard_group / run.cp : run.dp;
  if (run.dp % shard != 0) throw UsageError("shard_group: groups of {} do not divide dp = {}", run.shard_group, run.dp);
  s.mesh[Axis::kDpShard] = shard, s.mesh[Axis::kDpReplicate] = run.dp / shard;
  s.sequence_parallel = run.sequence_parallel && run.tp > 1;
  set_pipeline(run, arch, s);
  s.recompute = recompute_of(run);
  s.global_batch = run.global_batch, s.micro_batch = run.micro_batch.value_or(1), s.sequence = run.sequence;
  s.compute = DType::kBF16;  // fp16 has the same rates and sizes
  s.kernels = arch::Kernels::kAten;
  set_framework(framework, s);
  return s;
}

cluster::Cluster cluster_of(const Run& run) {
  cluster::Cluster c = described(run.gpu);
  const auto given = [](cluster::Figure& figure, const std::optional<double>& value, const char* column) {
    if (value) figure = {*value, 0.0, fmt::format("column {}", column)};
  };
  given(c.device.peak_16bit, run.peak_16bit, "peak_16bit_tflops");
  given(c.device.peak_fp8, run.peak_fp8, "peak_fp8_tflops");
  const int of_node = std::min(run.gpus_per_node, run.gpus);
  if (of_node > c.node.devices)
    throw UsageError("gpus_per_node: {}, but a node of {} has {} of {}", run.gpus_per_node, c.name, c.node.devices,
                     run.gpu);
  cluster::Tier node, network = c.tiers.back();
  if (of_node > 1) node = c.tier_of(of_node);
  c.node.devices = node.devices = of_node;
  c.nodes = (run.gpus + of_node - 1) / of_node;
  network.devices = c.devices();
  given(network.bandwidth, run.network_bytes_per_s, "network_gbps_per_gpu");
  std::erase_if(c.tiers, [&](const cluster::Tier& tier) { return tier.devices >= of_node; });
  if (of_node > 1) c.tiers.push_back(node);
  if (c.nodes > 1) c.tiers.push_back(network);
  return c;
}

Result<RunPrediction> predict(const Run& run, const sim::Factors& factors) {
  try {
    const cluster::Cluster cluster = cluster_of(run);
    return predict_best(run, [&](const Run& filled) { return predict_filled(filled, cluster, factors); });
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
}

Result<std::vector<double>> predict_times(const Run& run, const std::vector<sim::Factors>& sets) {
  Run chosen = run;
  if (has_choices(run)) {
    const auto first = predict(run, sets.front());
    if (!first) return Failure{first.reason()};
    chosen = filled_with(run, first.value().chosen);
  }
  try {
    const cluster::Cluster cluster = cluster_of(chosen);
    const program::Stages stages(programs_of(chosen));
    std::vector<double> seconds;
    for (const sim::Factors& factors : sets) {
      const sim::DescribedCosts costs(cluster, factors, costs_of(framework_of(chosen)));
      seconds.push_back(seconds_of(sim::simulate(stages, costs), costs));
    }
    return seconds;
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
}

}  // namespace molen::plan
