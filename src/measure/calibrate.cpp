#include "measure/calibrate.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "exec/executor.h"
#include "launch/together.h"
#include "measure/rates.h"
#include "program/build/build.h"
#include "program/parts/part.h"
#include "program/provenance/provenance.h"
#include "sim/simulate.h"

namespace molen::measure {
namespace {

struct Shape {
  std::int64_t hidden, ffn, heads, kv_heads, head_dim, vocabulary, batch, sequence, layers;
  std::int64_t experts = 0, per_token = 0, shared = 0;  // for sparse layers; ffn is then the width of an expert
};

// These shapes spread over the sizes that a CPU machine trains. No two sizes grow in step over the shapes, so that no
// two exponents of the fit are coupled.
constexpr Shape kShapes[] = {
    {128, 352, 4, 2, 32, 2048, 2, 128, 2},          {128, 512, 2, 1, 64, 8192, 8, 128, 2},
    {128, 256, 4, 2, 32, 3072, 4, 128, 2, 6, 2, 1}, {192, 512, 6, 2, 32, 4096, 4, 256, 2},
    {256, 704, 4, 2, 64, 16384, 4, 256, 2},         {256, 1024, 8, 8, 32, 4096, 1, 512, 2},
    {256, 640, 4, 4, 64, 12000, 8, 256, 1},         {256, 320, 4, 4, 32, 4096, 3, 256, 2, 8, 2, 2},
    {320, 896, 5, 5, 64, 6000, 2, 384, 2},          {384, 1024, 6, 2, 64, 16384, 2, 512, 2},
    {384, 448, 6, 2, 64, 8192, 2, 384, 2, 12, 4},   {384, 1536, 12, 4, 32, 24000, 8, 128, 1},
    {512, 1408, 8, 4, 64, 32000, 4, 256, 2},        {512, 1408, 8, 4, 64, 16384, 4, 512, 3},
    {512, 2048, 8, 8, 64, 8192, 1, 768, 2},         {640, 1728, 10, 5, 64, 20000, 2, 512, 1},
    {768, 3072, 12, 12, 64, 8192, 1, 1024, 1},
};

arch::Architecture architecture(const Shape& s) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.name = "calibration";
  a.hidden = s.hidden;
  a.ffn = s.ffn;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim;
  a.vocabulary = s.vocabulary;
  a.layers = s.layers;
  a.max_sequence = 2048;
  if (s.experts > 0)
    a.experts = arch::Experts{.count = s.experts, .per_token = s.per_token, .ffn = s.ffn, .shared = s.shared};
  if (s.batch >= 4) a.qk_norm = arch::QkNorm::kHead;  // for the kinds of ops that only models with these norms have
  a.tied = s.batch == 2 || s.batch == 8;              // tied models clear their table's gradient, untied ones do not
  return a;
}

// Returns whether a setting can compute the ops of a model: sparse layers are not implemented in all types.
bool computed(const arch::Architecture& a, const program::Setting& s) {
  return std::ranges::none_of(arch::parts_in_order(a), [&](arch::Part part) {
    const program::KernelRequest request{
        .compute = s.compute, .head_dim = a.head_dim, .context_ranks = s.context_ranks()};
    return program::kernels_refused(s.kernels_of(part), part, request).has_value();
  });
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

sim::Cores cores_of(comm::Communicator& world) {
  std::vector<std::int32_t> allowed(CPU_SETSIZE, 0);
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] = CPU_ISSET(i, &mask) ? 1 : 0;
  else
    for (std::int64_t i = 0; i < std::min<std::int64_t>(CPU_SETSIZE, ::sysconf(_SC_NPROCESSORS_ONLN)); ++i)
      allowed[static_cast<std::size_t>(i)] = 1;
  if (world.size() > 1)
    world.all_reduce(allowed.data(), static_cast<std::int64_t>(allowed.size()), DType::kI32, comm::Reduce::kMax);

  sim::Cores cores{0, 0, ""};
  std::set<std::string> physical;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i]) continue;
    ++cores.logical;
    const fs::path siblings = fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", i);
    physical.insert(fs::exists(siblings) ? read_file(siblings) : std::to_string(i));
    std::size_t last = i;
    while (last + 1 < allowed.size() && allowed[last + 1]) ++last;
    if (i == 0 || !allowed[i - 1])
      cores.affinity += fmt::format("{}{}{}", cores.affinity.empty() ? "" : ",", i,
                                    last > i ? fmt::format("-{}", last) : std::string());
  }
  cores.physical = static_cast<int>(physical.size());
  return cores;
}

std::string cpu_model() {
  const std::string info = read_file("/proc/cpuinfo");
  const auto at = info.find("model name");
  if (at == std::string::npos) return "unknown";
  const auto colon = info.find(':', at), end = info.find('\n', at);
  return info.substr(colon + 2, end - colon - 2);
}

std::vector<DType> likely_precisions(int threads, comm::Communicator& world) {
  constexpr double kNear = 0.8;
  std::string names;
  if (world.rank() == 0) {
    const auto rates = precision_rates(threads);
    const double best = std::max(rates.fp32, rates.bf16);
    if (rates.fp32 >= kNear * best) names += "fp32 ";
    if (rates.bf16 >= kNear * best) names += "bf16 ";
  }
  std::istringstream said(launch::broadcast_text(names, world));
  std::vector<DType> precisions;
  for (std::string name; said >> name;) precisions.push_back(dtype_from_name(name));
  return precisions;
}

SyntheticRun run_synthetic(const program::Program& p, comm::Communicator& world, int repeats, int cuda_device) {
  at::set_num_threads(p.setting.threads);  // otherwise every rank would take all cores
  const auto index = static_cast<c10::DeviceIndex>(cuda_device);
  exec::Executor executor(p, world.rank(), &world, {cuda_device < 0 ? at::kCPU : at::Device(at::kCUDA, index)});
  {
    // Fills the weights without drawing them, which would take longer than the steps. Speed does not depend on the
    // values as long as they are ordinary numbers.
    const c10::InferenceMode inference;
    for (std::size_t u = 0; u < p.units.size(); ++u)
      for (const char* family : {"param", "master"})
        if (executor.has_state(family)) executor.state(family, static_cast<int>(u)).fill_(0.02);
  }
  std::uint64_t position = 0;
  exec::StepInput input;
  input.load = [&](const exec::MicroBatch& to) {
    const std::int64_t n = p.setting.micro_batch * p.setting.sequence;
    for (std::int64_t i = 0; i < n; ++i)
      to.ids[i] = static_cast<std::int32_t>(uniform_at(9, position++) * static_cast<double>(p.arch.vocabulary));
    for (std::int64_t i = 0; i < n; ++i) to.labels[i] = to.ids[(i + 1) % n];
    if (to.document_start) std::fill(to.document_start, to.document_start + n, 0);
    return n;
  };
  SyntheticRun run;
  for (int i = 0; i <= repeats; ++i) {
    input.step = i + 1;
    world.barrier();
    auto result = executor.run(input);
    if (i == 0) run.first_step_end_s = now().value;
    if (i > 0) run.timelines.push_back(std::move(result.timeline));
  }
  run.touched = executor.touched();
  if (cuda_device >= 0) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    run.device_peak = Bytes(at::accelerator::getDeviceStats(index).allocated_bytes[kAll].peak);
  }
  return run;
}

namespace {

// One calibration program and its measurements.
struct Trial {
  program::Program program;
  std::string name;
  std::vector<program::Timeline> timelines;
};

// Trials have two micro-batches, because the second one adds to the gradient where the first overwrites it. The second
// kind has collectives of ZeRO and sums that add, the third has expert ranks, the fourth the other kernels that the
// configuration chooses, and the fifth has context ranks, which apply the capacity of experts together.
struct TrialKind {
  int zero = 0;
  bool apart = false, others = false, context = false;
  std::string_view text = {};
};
constexpr TrialKind kTrialKinds[] = {{},
                                     {.zero = 2},
                                     {.apart = true, .text = " on expert ranks"},
                                     {.others = true, .text = " by other kernels"},
                                     {.context = true, .text = " on context ranks"}};

program::Setting trial_setting(const CalibrateOptions& o, const Shape& shape, const TrialKind& kind, int ranks) {
  program::Setting setting;
  setting.mesh[kind.apart ? mesh::Axis::kEp : kind.context ? mesh::Axis::kCp : mesh::Axis::kDpShard] = ranks;
  setting.zero = kind.zero;
  setting.micro_batch = shape.batch;
  setting.global_batch = shape.batch * (kind.context ? 1 : ranks) * (kind.apart ? 1 : 2);
  const std::int64_t pieces = kind.context ? 2 * ranks : 1;  // of each sequence, all of one length
  setting.sequence = (shape.sequence + pieces - 1) / pieces * pieces;
  setting.compute = o.compute;
  setting.master = o.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  setting.reduce = setting.master;
  setting.kernels = o.kernels;
  if (kind.others) setting.other_kernels = o.other_kernels;
  setting.threads = o.threads;
  setting.head_chunk = arch::head_chunk(shape.vocabulary);
  return setting;
}

std::vector<Trial> make_trials(const CalibrateOptions& o, int ranks) {
  std::vector<Trial> trials;
  const std::int64_t narrowest = std::begin(kShapes)->hidden;
  if (o.widest > 0 && o.widest < narrowest)
    throw UsageError("--widest: {}; the narrowest shape is {} wide", o.widest, narrowest);
  for (const Shape& shape : kShapes) {
    if (o.widest > 0 && shape.hidden > o.widest) continue;
    for (const TrialKind& kind : kTrialKinds) {
      if (kind.others && (o.other_kernels.empty() || shape.experts > 0)) continue;
      if (kind.zero == 2 && (ranks == 1 || shape.layers > 2)) continue;
      if ((kind.apart || kind.context) && (ranks == 1 || shape.experts == 0)) continue;
      const program::Setting setting = trial_setting(o, shape, kind, ranks);
      arch::Architecture arch = architecture(shape);
      arch.max_sequence = std::max(arch.max_sequence, setting.sequence);
      if (kind.apart) arch.experts->count = (shape.experts + ranks - 1) / ranks * ranks;  // each rank has as many
      if (kind.context) arch.experts->capacity = 1.0;
      if (!computed(arch, setting)) continue;
      trials.push_back({program::build(arch, setting),
                        fmt::format("d {} {}ffn {} vocabulary {} batch {} x {}{}", shape.hidden,
                                    shape.experts > 0 ? fmt::format("{} experts of ", shape.experts) : "", shape.ffn,
                                    shape.vocabulary, shape.batch, setting.sequence, kind.text),
                        {}});
      program::require_sound(trials.back().program, "calibration");
    }
  }
  return trials;
}

void add_samples(const Trial& trial, std::vector<sim::Sample>& samples) {
  const auto ops = program::expand(trial.program);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    std::vector<std::vector<double>> seconds(1 + step.epilogues.size());  // of the op's own work, and of each epilogue
    for (const auto& t : trial.timelines) {
      const std::vector<program::Work> work = program::work_of(step, t.ops[i]);
      for (std::size_t k = 0; k < work.size(); ++k) seconds[k].push_back(work[k].cpu_s);
    }
    samples.push_back(
        {sim::fitted_kind(trial.program, step), sim::features_of(trial.program, step), median(seconds[0])});
    for (std::size_t k = 0; k < step.epilogues.size(); ++k)
      samples.push_back(
          {program::kind_of(step.epilogues[k].kind), sim::features_of(step.epilogues[k]), median(seconds[k + 1])});
  }
}

// Returns the ratio of measured to simulated seconds of a step, as a product of two ratios. The first compares a step's
// duration with a simulation of its own measured ops; the least one of all steps counts, because other work on the
// machine can only add to it. The second compares the simulation of the measured ops (the median of the steps) with the
// simulation of the fitted ops.
double pace_of(const Trial& trial, const sim::Costs& costs) {
  const auto ops = program::expand(trial.program);
  std::vector<double> computed;
  double waiting = std::numeric_limits<double>::infinity();
  for (const auto& t : trial.timelines) {
    std::vector<double> work;
    for (const auto& op : t.ops) work.push_back(op.cpu_s);
    computed.push_back(sim::simulate(ops, std::move(work), costs.sharing()).total_s);
    waiting = std::min(waiting, t.total_s / computed.back());
  }
  return waiting * median(computed) / sim::simulate(trial.program, ops, costs).total_s;
}

double median_pace(const std::vector<Trial>& trials, const sim::Costs& as_fitted) {
  std::vector<double> paces;
  for (const Trial& trial : trials) paces.push_back(pace_of(trial, as_fitted));
  return median(paces);
}

}  // namespace

std::int64_t calibrated_width(std::int64_t hidden) {
  for (const Shape& shape : kShapes)
    if (shape.hidden >= hidden) return shape.hidden;
  return std::rbegin(kShapes)->hidden;
}

std::vector<program::Program> calibration_programs(const CalibrateOptions& options, int ranks) {
  std::vector<program::Program> programs;
  for (Trial& trial : make_trials(options, ranks)) programs.push_back(std::move(trial.program));
  return programs;
}

sim::Calibration::Entry calibrate(const CalibrateOptions& o, const std::string& communicator, comm::Communicator& world,
                                  const CalibrateProgress& progress) {
  std::vector<Trial> trials = make_trials(o, world.size());
  // Measures in rounds, so that a slow moment of a shared machine does not hit a single shape.
  std::size_t done = 0;
  const auto all = static_cast<double>(trials.size() * static_cast<std::size_t>(o.rounds));
  for (int round = 0; round < o.rounds; ++round)
    for (Trial& trial : trials) {
      const std::string what = fmt::format("round {} of {}, {}", round + 1, o.rounds, trial.name);
      if (progress && world.rank() == 0) progress(static_cast<double>(done) / all, what);
      for (auto& t : run_synthetic(trial.program, world, o.repeats).timelines) trial.timelines.push_back(std::move(t));
      if (progress && world.rank() == 0) progress(static_cast<double>(++done) / all, what);
    }
  std::vector<sim::Sample> samples;
  for (const Trial& trial : trials) add_samples(trial, samples);
  sim::CostModel costs = sim::CostModel::fit(samples);
  const sim::Cores cores = cores_of(world);
  costs.set_pace(median_pace(trials, sim::Costs(costs, {cores.logical, world.size(), o.threads}, communicator)));
  return {sim::conditions_of(trials.back().program.setting, communicator), cores, costs};
}

}  // namespace molen::measure
