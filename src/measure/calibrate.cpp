#include "measure/calibrate.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/median.h"
#include "base/rng.h"
#include "exec/executor.h"
#include "launch/throw_on_all_ranks.h"
#include "measure/rates.h"
#include "sim/simulate.h"

namespace molen::measure {

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

namespace {

// Returns values that repeat in all weights. To draw each weight would take longer than the steps. But weights of one
// value would not do: a GPU draws less power for them, and then has a higher clock.
at::Tensor weights() {
  constexpr std::int64_t kCount = 65521;  // a prime, so that no row of a matrix is like the row above it
  at::Tensor values = at::empty({kCount}, at::kFloat);
  for (std::int64_t i = 0; i < kCount; ++i)
    values.data_ptr<float>()[i] = static_cast<float>(0.07 * uniform_at(11, static_cast<std::uint64_t>(i)) - 0.035);
  return values;
}

void repeat(const at::Tensor& values, const at::Tensor& to) {
  const at::Tensor flat = to.view({-1}), there = values.to(to.device(), to.scalar_type());
  for (std::int64_t first = 0; first < flat.numel(); first += there.numel()) {
    const std::int64_t count = std::min(there.numel(), flat.numel() - first);
    flat.narrow(0, first, count).copy_(there.narrow(0, 0, count));
  }
}

}  // namespace

SyntheticRun run_synthetic(const program::Program& p, comm::Communicator& world, int repeats, int cuda_device,
                           std::int64_t documents) {
  at::set_num_threads(p.setting.threads);  // otherwise every rank would take all cores
  const auto index = static_cast<c10::DeviceIndex>(cuda_device);
  exec::Executor executor(p, world.rank(), &world, {cuda_device < 0 ? at::kCPU : at::Device(at::kCUDA, index)});
  {
    const c10::InferenceMode inference;
    const at::Tensor values = weights();
    for (std::size_t u = 0; u < p.units.size(); ++u)
      for (const char* family : {"param", "master"})
        if (executor.has_state(family)) repeat(values, executor.state(family, static_cast<int>(u)));
  }
  const std::vector<std::int32_t> starts = equal_documents(p.setting.sequence, documents);
  std::uint64_t position = 0;
  exec::StepInput input;
  input.load = [&](const exec::MicroBatch& to) {
    const std::int64_t n = p.setting.micro_batch * p.setting.sequence;
    for (std::int64_t i = 0; i < n; ++i)
      to.ids[i] = static_cast<std::int32_t>(uniform_at(9, position++) * static_cast<double>(p.arch.vocabulary));
    for (std::int64_t i = 0; i < n; ++i) to.labels[i] = to.ids[(i + 1) % n];
    if (to.document_start)
      for (std::int64_t row = 0; row < p.setting.micro_batch; ++row)
        std::ranges::copy(starts, to.document_start + row * p.setting.sequence);
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
  explicit Trial(CalibrationProgram of)
      : stage(std::vector{std::move(of.program)}), once(of.once), documents(of.documents), name(std::move(of.name)) {}
  const program::Program& program() const { return stage.program(0); }

  program::Stages stage;  // this rank's only
  bool once = false;      // measured in the first round only
  std::int64_t documents = 1;
  std::string name;
  std::vector<program::Timeline> timelines;
  double wall_s = 0.0;  // of the latest measurement, with building the executor and warming up
};

bool is_message(const program::Op& op) {
  return std::holds_alternative<program::Send>(op) || std::holds_alternative<program::Receive>(op);
}

// Collectives are fitted as those among all ranks. A table that both ends of a pipeline hold is summed among two.
bool among_some_ranks(const program::Program& p, const program::Step& step) {
  const auto axis = program::axis_of(step.op);
  return axis && !is_message(step.op) && program::group_size(p.grid, *axis) != p.grid.ranks();
}

// A thread that waits for a message polls now and then, so the shortest of its times is that of the message.
double seconds_of(const program::Step& step, const std::vector<double>& measured) {
  return is_message(step.op) ? *std::ranges::min_element(measured) : median(measured);
}

void add_samples(const Trial& trial, std::vector<sim::Sample>& samples) {
  const auto& ops = trial.stage.ops(0);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    if (among_some_ranks(trial.program(), step)) continue;
    std::vector<std::vector<double>> seconds(1 + step.epilogues.size());  // of the op's own work, and of each epilogue
    for (const auto& t : trial.timelines) {
      const std::vector<program::Work> work = program::work_of(step, t.ops[i]);
      for (std::size_t k = 0; k < work.size(); ++k) seconds[k].push_back(work[k].cpu_s);
    }
    samples.push_back({sim::fitted_kind(trial.program(), step), sim::features_of(step), seconds_of(step, seconds[0])});
    for (std::size_t k = 0; k < step.epilogues.size(); ++k)
      samples.push_back(
          {program::kind_of(step.epilogues[k].kind), sim::features_of(step.epilogues[k]), median(seconds[k + 1])});
  }
}

// Returns the ratio of measured to simulated seconds of a step, as a product of two ratios. The first compares a step's
// duration with a simulation of its own measured ops; the least one of all steps counts, because other work on the
// machine can only add to it. The second compares the simulation of the measured ops (the median of the steps) with the
// simulation of the fitted ops.
double factor_of(const Trial& trial, const sim::MeasuredCosts& costs) {
  std::vector<double> computed;
  double waiting = std::numeric_limits<double>::infinity();
  for (const auto& t : trial.timelines) {
    std::vector<double> work;
    for (const auto& op : t.ops) work.push_back(op.cpu_s);
    computed.push_back(sim::step_seconds(sim::simulate(trial.stage, {std::move(work)}, costs.core_contention())));
    waiting = std::min(waiting, t.total_s / computed.back());
  }
  return waiting * median(computed) / sim::step_seconds(sim::simulate(trial.stage, costs));
}

// Sets the factor to the median of the trials' factors. A rank knows the times of its own stage only, so the trials in
// stages do not count.
void set_factor(const std::vector<Trial>& trials, const sim::MeasuredCosts& as_fitted, sim::CostModel& costs) {
  std::vector<double> factors;
  for (const Trial& trial : trials)
    if (!trial.program().setting.pipelined()) factors.push_back(factor_of(trial, as_fitted));
  const double factor = median(factors);
  double squares = 0.0;
  for (const double each : factors) squares += std::pow(std::log(each / factor), 2.0);
  costs.set_calibration_factor(factor, std::sqrt(squares / static_cast<double>(factors.size())));
}

// Returns the samples of rank 0 and, for trials in stages, those of the last rank, which has the head. Collective.
std::vector<sim::Sample> samples_of(const std::vector<Trial>& trials, comm::Communicator& world) {
  std::vector<sim::Sample> samples, in_stages;
  for (const Trial& trial : trials) {
    add_samples(trial, samples);
    if (trial.program().setting.pipelined()) add_samples(trial, in_stages);
  }
  if (world.size() == 1) return samples;
  Json sent = Json::array();
  for (const sim::Sample& s : in_stages) sent.push_back({s.kind, s.features, s.seconds});
  for (const Json& s : Json::parse(launch::broadcast_text(sent.dump(), world, world.size() - 1)))
    samples.push_back({s.at(0), s.at(1), s.at(2)});
  return samples;
}

// FLOPs of a step above which one timed step is enough: noise averages out within it.
constexpr double kLargeFlops = 1e11;

// Returns the FLOPs of the rank with the most of them, on all ranks. Collective.
double flops_of(const Trial& trial, comm::Communicator& world) {
  double flops = 0.0;
  for (const auto& op : trial.stage.ops(0)) flops += op.step->hardware_flops.value;
  if (world.size() > 1) world.all_reduce(&flops, 1, DType::kF64, comm::Reduce::kMax);
  return flops;
}

// Measures in rounds, so that a slow moment of a shared machine does not hit a single shape. Rank 0's clock decides
// what is measured again. Collective.
void measure_in_rounds(std::vector<Trial>& trials, const CalibrateOptions& o, comm::Communicator& world,
                       const CalibrateProgress& progress) {
  const double begun = now().value;
  double all = 0.0;
  for (const Trial& trial : trials) all += trial.once ? 1 : o.rounds;
  std::size_t done = 0;
  std::string last;
  const auto say = [&](const std::string& what) {
    if (progress && world.rank() == 0) progress(static_cast<double>(done) / all, what);
    last = what;
  };
  const auto fits = [&](const Trial& trial) {
    std::int32_t time_left = world.rank() == 0 && now().value - begun + trial.wall_s <= o.seconds ? 1 : 0;
    if (world.size() > 1) world.all_reduce(&time_left, 1, DType::kI32, comm::Reduce::kMax);
    return time_left != 0;
  };
  bool skipped = false;
  for (int round = 0; round < o.rounds; ++round)
    for (Trial& trial : trials) {
      if (round > 0 && trial.once) continue;
      skipped = round > 0 && !fits(trial);
      const std::string what = fmt::format("round {} of {}, {}", round + 1, o.rounds, trial.name);
      if (!skipped) {
        say(what);
        const double start = now().value;
        const int repeats = flops_of(trial, world) > kLargeFlops ? 1 : o.repeats;
        for (auto& t : run_synthetic(trial.program(), world, repeats, -1, trial.documents).timelines)
          trial.timelines.push_back(std::move(t));
        trial.wall_s = now().value - start;
      }
      ++done;
      if (!skipped) say(what);
    }
  if (skipped) say(last);  // all is done
}

}  // namespace

std::vector<Team> teams_of(int cores) {
  std::vector<Team> teams;
  for (const int ranks : {1, 2, 4, 8})
    if (ranks <= cores) teams.push_back({ranks, cores / ranks});
  if (cores > 1) teams.push_back({1, 1});
  return teams;
}

sim::Calibration::Entry calibrate(const CalibrateOptions& o, const std::string& communicator, comm::Communicator& world,
                                  const CalibrateProgress& progress) {
  std::vector<Trial> trials;
  for (CalibrationProgram& p : calibration_programs(o, world.size(), world.rank())) trials.emplace_back(std::move(p));
  measure_in_rounds(trials, o, world, progress);
  sim::CostModel costs = sim::CostModel::fit(samples_of(trials, world));
  const sim::Cores cores = cores_of(world);
  set_factor(trials, sim::MeasuredCosts(costs, {cores.logical, world.size(), o.threads}, communicator), costs);
  return {sim::conditions_of(trials.front().program().setting, communicator), cores, costs};
}

}  // namespace molen::measure
