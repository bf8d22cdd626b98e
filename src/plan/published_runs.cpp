#include "plan/published_runs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/suggest.h"
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

// Returns the ZeRO stage of the program that stands for a run. TorchTitan, which combines fully sharded
// parameters with a pipeline, gathers them once a step then, and reduces gradients after the last micro-batch.
int zero_of(const Run& run) {
  const int zero = run.zero.value_or(0);
  return zero == 3 && run.pp > 1 ? 1 : zero;
}

bool overlaps_data(const Run& run) {
  return run.overlap.contains("dp");
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

// Communication over an axis that does not run beside compute is work of the compute stream.
void expose(program::Program& p, program::Stream stream) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (step.stream == stream) step.stream = program::Stream::kCompute;
}

// Other programs post a stage's sends and receives together, so that no receive queues behind a send. Receives
// therefore get a stream of their own: that of expert ranks, which these programs do not have.
void receive_beside_sends(program::Program& p) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (std::holds_alternative<program::Receive>(step.op)) step.stream = program::Stream::kEpComm;
}

sim::Framework framework_of(const Run& run) {
  return {.flash_attention = run.flash_attention,
          .fp8 = run.precision == "fp8",
          .compiled = run.compiled,
          .messages_beside_compute = run.overlap.contains("pp"),
          // Whoever keeps whole gradients reduces them after the last micro-batch.
          .reduces_last = !overlaps_data(run) && zero_of(run) < 2,
          .gathers_in_forward = overlaps_data(run) && zero_of(run) == 1,
          // Systems that wait for fully sharded parameters gather matrix by matrix.
          .gathers_matrices = !overlaps_data(run) && zero_of(run) == 3,
          .pieces_at_once = true,
          .whole_logits = true,
          .whole_layers_again = !run.compiled,  // a compiler drops what nobody reads
          .one_at_a_time = false};
}

// The programs of all stages of a run. Gathers and reductions of sharded gradients that do not run beside compute are
// work of the compute stream. Messages stay on their stream: on that of compute, a sender would also wait while the
// receiver still computes.
std::vector<program::Program> programs_of(const Run& run) {
  if (const auto why = too_large(run)) throw UsageError("{}", *why);
  const arch::Architecture a = architecture_of(run);
  auto programs = program::build_stages(a, setting_of(run, a), nullptr, false);
  for (auto& p : programs) {
    if (!overlaps_data(run) && zero_of(run) >= 2) expose(p, program::Stream::kDpComm);
    receive_beside_sends(p);
  }
  return programs;
}

double seconds_of(const std::vector<program::Timeline>& timelines, const sim::Factors& factors) {
  return sim::step_seconds(timelines) * (1.0 + factors.of("outside"));
}

RunPrediction predict_filled(const Run& run, const cluster::Cluster& cluster, const sim::Factors& factors) {
  auto programs = programs_of(run);
  RunPrediction out;
  if (cluster.device.name != run.gpu) out.chosen["gpu"] = cluster.device.name;
  // Tensor ranks overlap their exchanges in pieces of sharded rows.
  if (run.overlap.contains("tp") && run.tp > 1 && programs.front().setting.tensor_chunks == 1) {
    std::set<std::string> rest = run.overlap;
    rest.erase("tp");
    out.chosen["overlap"] = rest.empty() ? "none" : fmt::format("{}", fmt::join(rest, "+"));
  }
  const FrameworkMemory memory = memory_of(run, programs, cluster.device.memory.value);
  out.allocator_bytes = memory.allocator, out.memory_bytes = memory.device;
  out.fits = memory.fits;
  const program::Stages stages(std::move(programs));
  const auto timelines = sim::simulate(stages, sim::DescribedCosts(cluster, factors, framework_of(run)));
  out.step_s = seconds_of(timelines, factors);
  out.errors = sim::errors_of_step(stages, timelines, sim::DescribedErrors(cluster, factors, framework_of(run)));
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
  s.zero = zero_of(run);
  if (run.shard_group % run.cp != 0)
    throw UsageError("shard_group: {} ranks do not hold whole groups of cp = {}", run.shard_group, run.cp);
  const int shard = run.shard_group > 0 ? run.shard_group / run.cp : run.dp;
  if (run.dp % shard != 0) throw UsageError("shard_group: groups of {} do not divide dp = {}", run.shard_group, run.dp);
  s.mesh[Axis::kDpShard] = s.zero >= 2 ? shard : 1;
  s.mesh[Axis::kDpReplicate] = run.dp / s.mesh[Axis::kDpShard];
  if (s.zero >= 2 && s.mesh[Axis::kDpShard] * run.cp == 1) s.zero = 0;  // one rank has nothing to shard over
  s.sequence_parallel = run.sequence_parallel && run.tp > 1;
  if (run.overlap.contains("tp") && s.sequence_parallel && run.sequence >= 4 * run.tp) s.tensor_chunks = 4;
  set_pipeline(run, arch, s);
  s.recompute = recompute_of(run);
  s.global_batch = run.global_batch, s.micro_batch = run.micro_batch.value_or(1), s.sequence = run.sequence;
  s.compute = DType::kBF16;  // fp16 has the same rates and sizes
  s.reduce = run.grad_dtype == "fp32" ? DType::kF32 : DType::kBF16;
  s.kernels = arch::Kernels::kAten;
  s.head_chunk = s.tokens();  // other programs compute all logits of a micro-batch at once
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
    for (const sim::Factors& factors : sets)
      seconds.push_back(
          seconds_of(sim::simulate(stages, sim::DescribedCosts(cluster, factors, framework_of(chosen))), factors));
    return seconds;
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
}

}  // namespace molen::plan
