// The loop: steps, validation, checkpoints, stopping; the same on every rank.
#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <span>

#include "arch/json.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "comm/nccl/nccl.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "exec/executor.h"
#include "math/gemm.h"
#include "program/build.h"
#include "sim/calibration.h"
#include "sim/simulate.h"
#include "train/checkpointing.h"
#include "train/init.h"
#include "train/job_energy.h"
#include "train/optimizer_config.h"
#include "train/recorder.h"
#include "train/signals.h"
#include "train/together.h"

namespace molen::train {
namespace {

// Resident bytes now, and the most there ever were.
Bytes resident() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, rss = 0;
  in >> pages >> rss;
  return Bytes(rss * ::sysconf(_SC_PAGESIZE));
}
// What the process holds before any of its arenas. The model's largest products first (those of the head), so that the
// library's packing buffers are counted; a part of them where they are very large, as the buffers stop growing.
// Collective: rank-threads share the process, and one that ran ahead would be counted.
Bytes resident_before_arena(const Job& job, comm::Communicator& world) {
  at::set_num_threads(job.setting.threads);
  const std::int64_t m = job.setting.head_chunk, k = std::min<std::int64_t>(job.arch.hidden, 1024),
                     n = std::min<std::int64_t>(job.arch.vocabulary, 16384);
  {
    std::vector<float> y(static_cast<std::size_t>(m * k)), w(static_cast<std::size_t>(n * k)),
        logits(static_cast<std::size_t>(m * n));
    math::matmul_nt(m, n, k, y.data(), w.data(), false, logits.data());
    math::matmul_nn(m, k, n, logits.data(), w.data(), false, y.data());
    math::matmul_tn(n, k, m, logits.data(), y.data(), false, w.data());
  }
  std::int64_t bytes = resident().value;
  world.all_reduce(&bytes, 1, DType::kI64, comm::Reduce::kMax);
  return Bytes(bytes);
}
Bytes peak_resident() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return Bytes(usage.ru_maxrss * 1024);
}

data::OpenOptions open_options(const Job& job) {
  data::OpenOptions o;
  o.sequence_length = job.setting.sequence;
  o.vocabulary = job.arch.vocabulary;
  if (job.config.data.tokenizer)
    o.tokenizer_fingerprint = data::Tokenizer::load(*job.config.data.tokenizer).fingerprint();
  return o;
}

std::vector<data::DataEntry> entries(const Job& job) {
  if (job.config.data.train.empty())
    throw UsageError("data.train: at least one entry is needed, e.g. train = [{ path = \"data/train\" }]");
  std::vector<data::DataEntry> result;
  for (const auto& e : job.config.data.train) result.push_back({e.path, e.weight, e.languages});
  return result;
}

// The files a rank reads.
struct Inputs {
  explicit Inputs(const Job& job)
      : train(entries(job), static_cast<std::uint64_t>(job.config.data.seed), open_options(job)) {
    const auto options = open_options(job);
    for (const auto& e : job.config.data.validation)
      validation.push_back(std::make_unique<data::ValidationSet>(e.path, options));
  }
  data::Dataset train;
  std::vector<std::unique_ptr<data::ValidationSet>> validation;
};

// A period of steps, or of seconds.
struct Period {
  std::int64_t steps = 0;  // 0: by time
  double seconds = 0.0;
  double last = now().value;
  bool due(std::int64_t step) const {
    return steps > 0 ? step % steps == 0 : seconds > 0 && now().value - last >= seconds;
  }
};

class Loop {
 public:
  Loop(const Job& job, comm::Communicator& world, const Inputs& inputs)
      : job_(job),
        world_(world),
        data_(inputs.train),
        validation_(inputs.validation),
        base_(resident_before_arena(job, world)),
        devices_(job.communicator == "nccl" ? comm::open_nccl(world, job.machine.device) : nullptr),
        executor_(job.program, world.rank(), devices_ ? devices_.get() : &world, {device(), false}) {
    at::set_num_threads(job.setting.threads);
    together(world, [&] { horizon(); });
    open_validation();
    energy_ = std::make_unique<JobEnergy>(world, job.config);
    together(world, [&] {
      if (world.rank() == 0) recorder_ = std::make_unique<Recorder>(job, *energy_, total_steps_, stop_step_);
      load();
    });
    start();
  }

  void run() {
    catch_stop_signals();
    data::Loader loader(
        data_, {next_sample_, job_.setting.global_batch, job_.setting.micro_batch, world_.rank(), world_.size(), 4});
    loader_ = &loader;
    if (job_.options.save_initial && step_ == 0) save();
    const double begun = now().value;
    if (step_ >= stop_step_) {
      const energy::EnergySoFar used = energy_->so_far();
      if (recorder_)  // no step ran, so there is no peak to compare with the prediction
        recorder_->end(step_, tokens_total_, used,
                       fmt::format("nothing to do, {} ({} steps) was reached before",
                                   stop_step_ < total_steps_ ? "train.stop_after" : "train.until", stop_step_));
      return;
    }
    std::string reason = fmt::format("reached train.until ({} steps)", total_steps_);
    while (step_ < total_steps_) {
      one_step();
      const auto [stop, why, save_due] = decide(begun);
      const bool last = stop || step_ == total_steps_;
      // A launcher that was told to stop leaves a second to save in; the run is not at its end.
      if (!validation_.empty() && !stopped_ && (validate_every_.due(step_) || last)) run_validation();
      if (save_due || last) save();
      if (stop) {
        if (step_ < total_steps_) reason = why;
        break;
      }
    }
    finish(reason);
  }

 private:
  std::int64_t steps_of(const config::Horizon& h, const char* key) const {
    return plan::steps_of(job_.config, h, key, static_cast<double>(data_.sequences()));
  }

  void horizon() {
    total_steps_ = steps_of(job_.config.train.until, "train.until");
    if (total_steps_ < 0)
      throw UsageError("{}: the schedule needs a length in steps, tokens or epochs; train.stop_after takes a time",
                       job_.config.where("train.until"));
    stop_step_ = total_steps_;
    if (job_.config.train.stop_after) {
      const std::int64_t steps = steps_of(*job_.config.train.stop_after, "train.stop_after");
      if (steps >= 0)
        stop_step_ = std::min(steps, total_steps_);
      else
        stop_seconds_ = job_.config.train.stop_after->value;
    }
    schedule_ = resolve_schedule(job_.config, total_steps_, static_cast<double>(data_.sequences()));
    optimizer_ = resolve_optimizer(job_.config);
    const auto period = [&](const config::Horizon& h, const char* key) {
      Period p;
      const std::int64_t steps = steps_of(h, key);
      if (steps >= 0)
        p.steps = std::max<std::int64_t>(1, steps);
      else
        p.seconds = h.value;
      return p;
    };
    save_every_ = period(job_.config.checkpoint.every, "checkpoint.every");
    validate_every_ = period(job_.config.train.validate_every, "train.validate_every");
    if (validate_every_.steps == 0)
      throw UsageError("{}: give steps, tokens or epochs", job_.config.where("train.validate_every"));
  }

  void open_validation() {
    if (validation_.empty()) return;
    program::Setting s = job_.setting;
    s.purpose = program::Purpose::kEvaluate;
    s.global_batch = s.micro_batch;
    if (!s.sharded_parameters()) {  // every rank has the whole model
      s.mesh = mesh::kOne;
      s.zero = 0;
      s.own_over_dp = false;
    }
    evaluator_ = std::make_unique<exec::Executor>(
        program::build(job_.arch, s), s.sharded_parameters() ? world_.rank() : 0, devices_ ? devices_.get() : &world_,
        exec::Options{device(), false}, &executor_);
  }

  void load() {
    if (job_.resume_from) {
      const checkpoint::Checkpoint from(*job_.resume_from);
      const Json& state = from.state();
      const bool weights_only = !state.contains("step_done");
      load_state(from, executor_, weights_only);
      if (!weights_only) restore(state, from.path().string());
    } else {
      initialize_parameters(executor_, static_cast<std::uint64_t>(job_.config.train.seed), job_.setting.threads);
    }
  }

  void start() {
    const std::string hash = state_hash(executor_, world_);
    // Beside the arena, what the loader holds ahead. Beside what was there, pages of libraries that the first steps
    // touch: 5 to 14 MiB were measured.
    constexpr std::int64_t kLibraryPages = 8 << 20;
    memory_ = {executor_.memory().peak, base_ + Bytes(kLibraryPages), Bytes(4 * 2 * job_.setting.tokens() * 4),
               job_.communicator == "threads" ? world_.size() : 1};
    if (recorder_) recorder_->begin(step_, tokens_total_, memory_, hash);
    if (recorder_ && !data_.unhashed_note().empty()) recorder_->note(data_.unhashed_note());
    if (recorder_ && !job_.note.empty()) recorder_->note(job_.note);
  }

  void restore(const Json& state, const std::string& origin) {
    try {
      const JsonFields fields(state, origin + "/state.json");
      step_ = fields.integer("step_done");
      next_sample_ = fields.integer("next_sample");
      tokens_total_ = fields.integer("tokens_total");
      const std::string digest = state.at("data_digest").get<std::string>();
      if (digest != data_.digest() && !allowed("data.train"))
        throw UsageError(
            "{}: the training data is not what this run was trained on so far (digest {} then, {} now); --allow-change "
            "data.train continues anyway",
            origin, digest, data_.digest());
      if (recorder_) recorder_->restore_totals(state.at("totals"), step_, origin);
    } catch (const Json::exception& e) {
      throw UsageError("{}: state.json is incomplete: {}", origin, e.what());
    }
  }

  bool allowed(const std::string& key) const {
    const auto& keys = job_.options.allow_change;
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  void one_step() {
    energy_->begin_step();
    double wait = 0.0;
    exec::StepInput input;
    input.step = step_ + 1;
    input.optimizer = optimizer_;
    input.optimizer.lr = schedule_.lr(step_ + 1);
    input.clip = job_.config.optimizer.clip;
    input.load = [&](std::int32_t* ids, std::int32_t* labels) {
      const data::Batch batch = loader_->next();
      wait += batch.wait_s;
      std::copy(batch.ids.begin(), batch.ids.end(), ids);
      std::copy(batch.labels.begin(), batch.labels.end(), labels);
      return static_cast<std::int64_t>(
          std::count_if(batch.labels.begin(), batch.labels.end(), [](std::int32_t l) { return l >= 0; }));
    };
    const exec::StepResult result = executor_.run(input);
    if (result.non_finite) refuse_non_finite(result);
    ++step_;
    next_sample_ += job_.setting.global_batch;
    tokens_total_ += static_cast<std::int64_t>(result.valid_tokens);
    record(result, input.optimizer.lr, wait);
    if (recorder_ && job_.options.cluster) {
      timelines_.push_back(result.timeline);
      if (timelines_.size() > kKeptTimelines) timelines_.erase(timelines_.begin());
    }
  }

  [[noreturn]] void refuse_non_finite(const exec::StepResult& result) {
    std::string places;
    for (std::int64_t s = next_sample_; s < next_sample_ + job_.setting.global_batch; ++s)
      places += "\n  " + data_.describe(s);
    throw Error(
        "step {}: the loss ({}) or the gradient norm ({}) is not finite; the optimizer was not run. Samples {} to {} "
        "of the global order:{}",
        step_ + 1, result.loss_sum / result.valid_tokens, result.grad_norm, next_sample_,
        next_sample_ + job_.setting.global_batch - 1, places);
  }

  void record(const exec::StepResult& result, double lr, double wait) {
    const auto phases = program::phase_seconds(executor_.ops(), result.timeline);
    // Means over ranks; the peak is the largest.
    std::vector<double> sums(phases.phase_s.begin(), phases.phase_s.end());
    sums.push_back(phases.bubble_s);
    sums.push_back(result.timeline.total_s);
    sums.push_back(wait);
    const std::size_t means = sums.size();
    energy_->end_step(sums);
    world_.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64, comm::Reduce::kSum);
    for (std::size_t i = 0; i < means; ++i) sums[i] /= world_.size();
    const auto& high = executor_.measured_high_water();
    std::int64_t peak = *std::max_element(high.begin(), high.end());
    world_.all_reduce(&peak, 1, DType::kI64, comm::Reduce::kMax);
    if (!recorder_) return;
    StepRecord r;
    r.step = step_;
    r.loss = result.mean_loss();
    r.grad_norm = result.grad_norm;
    r.lr = lr;
    r.tokens_total = tokens_total_;
    for (int i = 0; i < program::kNumPhases; ++i)
      r.phase_s[std::string(program::name_of(static_cast<program::Phase>(i)))] = sums[static_cast<std::size_t>(i)];
    r.phase_s["bubble"] = sums[program::kNumPhases];
    r.step_s = sums[program::kNumPhases + 1];
    r.data_wait_s = sums[program::kNumPhases + 2];
    r.memory_peak = peak;
    r.memory_planned = executor_.memory().peak.value;
    r.first_sample = next_sample_ - job_.setting.global_batch;
    r.last_sample = next_sample_ - 1;
    r.energy = energy_->step(std::span(sums).subspan(means));
    recorder_->step(r);
    const auto& traced = job_.config.train.trace_steps;
    if (std::find(traced.begin(), traced.end(), step_) != traced.end())
      recorder_->trace(step_, executor_.ops(), result.timeline);
  }

  struct Decision {
    bool stop;
    std::string why;
    bool save;
  };
  // Whatever depends on a clock or a signal is decided on all ranks together.
  Decision decide(double begun) {
    std::int32_t flags[3] = {stop_requested() ? 1 : 0,
                             stop_seconds_ > 0 && now().value - begun >= stop_seconds_ ? 1 : 0,
                             save_every_.due(step_) ? 1 : 0};
    world_.all_reduce(flags, 3, DType::kI32, comm::Reduce::kMax);
    stopped_ = flags[0] != 0;
    if (stopped_) return {true, "stopped by a signal", true};
    if (flags[1]) return {true, "reached train.stop_after", true};
    if (step_ >= stop_step_) return {true, fmt::format("reached train.stop_after ({} steps)", stop_step_), true};
    return {false, "", flags[2] != 0};
  }

  void run_validation() {
    std::vector<const data::ValidationSet*> sets;
    for (const auto& set : validation_) sets.push_back(set.get());
    const auto result = validate(*evaluator_, sets, world_, job_.config.train.validate_batches.value_or(0));
    if (recorder_) recorder_->validation(step_, result);
  }

  void save() {
    if (saved_step_ == step_) return;
    const double start = now().value;
    checkpoint::SaveOptions o;
    o.directory = checkpoint_directory(job_.config);
    o.step = step_;
    o.rank = world_.rank();
    o.ranks = world_.size();
    if (world_.size() > 1) o.agree = agree_over(world_);
    const energy::EnergySoFar used = energy_->so_far();
    o.keep = static_cast<int>(job_.config.checkpoint.keep);
    if (world_.rank() == 0) {
      o.state = {{"step_done", step_},
                 {"next_sample", next_sample_},
                 {"tokens_total", tokens_total_},
                 {"data_digest", data_.digest()},
                 {"ranks", world_.size()},
                 {"seed", job_.config.train.seed},
                 {"rng", {{"init", "philox4x32-10 by parameter name"}, {"data_seed", job_.config.data.seed}}},
                 {"lr", schedule_.lr(std::max<std::int64_t>(1, step_))},
                 {"total_steps", total_steps_},
                 {"config", config::to_json(job_.config)},
                 {"arch", arch::to_json(job_.arch)},
                 {"totals", recorder_->totals(step_, tokens_total_, used)}};
      if (job_.config.data.tokenizer) o.attachments["tokenizer.json"] = read_file(*job_.config.data.tokenizer);
      o.attachments["config.toml"] = config::to_toml(job_.config);
    }
    const fs::path path = checkpoint::save(spans_of(executor_), o);
    saved_step_ = step_;
    save_every_.last = now().value;
    if (recorder_) recorder_->checkpoint(step_, path.string(), now().value - start);
  }

  // The same program through the other consumer: simulated with what `molen calibrate` measured, beside the median step
  // measured.
  void compare_with_prediction(std::int64_t rss) {
    const auto calibration = sim::read_calibration(*job_.options.cluster);
    const auto conditions = sim::conditions_of(job_.setting, job_.communicator);
    const auto costs = calibration.find(conditions);
    if (!costs) {
      recorder_->note(fmt::format("no prediction: {}: {}", *job_.options.cluster, costs.reason()));
      return;
    }
    if (timelines_.empty()) return;
    if (const std::string& from = costs.value().extrapolated(); !from.empty())
      recorder_->note("the prediction is extrapolated from " + from);
    std::sort(timelines_.begin(), timelines_.end(), [](const auto& a, const auto& b) { return a.total_s < b.total_s; });
    const auto predicted = sim::simulate(executor_.program(), executor_.ops(), costs.value());
    const auto& high = executor_.measured_high_water();
    recorder_->prediction(program::compare(executor_.ops(), predicted, timelines_[timelines_.size() / 2]), memory_,
                          executor_.memory().peak.value, *std::max_element(high.begin(), high.end()), rss);
  }

  void finish(const std::string& reason) {
    const std::int64_t rss = peak_resident().value;
    if (recorder_ && job_.options.cluster) compare_with_prediction(rss);
    const energy::EnergySoFar used = energy_->so_far();
    if (recorder_)
      recorder_->end(
          step_, tokens_total_, used,
          fmt::format("{}; peak resident memory {} where {} was predicted ({:+.1f}%)", reason, human(Bytes(rss)),
                      human(memory_.total()),
                      100.0 * (static_cast<double>(memory_.total().value) / static_cast<double>(rss) - 1.0)));
  }

  at::Device device() const {
    return job_.machine.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job_.machine.device))
                             : at::Device(at::kCPU);
  }

  const Job& job_;
  comm::Communicator& world_;  // moves host memory
  const data::Dataset& data_;
  const std::vector<std::unique_ptr<data::ValidationSet>>& validation_;
  Bytes base_;
  std::unique_ptr<comm::Communicator> devices_;  // moves device memory, where that is another one
  exec::Executor executor_;
  std::unique_ptr<exec::Executor> evaluator_;
  std::unique_ptr<JobEnergy> energy_;
  std::unique_ptr<Recorder> recorder_;
  data::Loader* loader_ = nullptr;
  optim::Schedule schedule_;
  optim::AdamW optimizer_;
  Period save_every_, validate_every_;
  MemoryPrediction memory_;
  static constexpr std::size_t kKeptTimelines = 51;
  std::vector<program::Timeline> timelines_;  // of the last steps, for the comparison with the prediction
  std::int64_t total_steps_ = 0, stop_step_ = 0, step_ = 0, next_sample_ = 0, tokens_total_ = 0, saved_step_ = -1;
  double stop_seconds_ = 0.0;
  bool stopped_ = false;  // by a signal
};

void print_dry_run(const Job& job) {
  const auto memory = program::plan_memory(job.program);
  const auto s = program::summarize(job.program, memory);
  fmt::print("{}: {} parameters, {} rank{} ({}), {}, {} micro-batch{} of {} x {} tokens a rank and step, {}\n",
             job.arch.name, arch::num_parameters(job.arch), job.machine.ranks, job.machine.ranks == 1 ? "" : "s",
             job.communicator, program::sharding_text(job.setting), job.setting.micro_batches(),
             job.setting.micro_batches() == 1 ? "" : "es", job.setting.micro_batch, job.setting.sequence,
             name_of(job.setting.compute));
  fmt::print(
      "the program is sound: {} ops in {} bodies; memory a rank: parameters {}, gradients {}, optimizer {}, "
      "activations {}, peak {}\n",
      job.program.num_ops(), job.program.bodies.size(), human(s.parameters), human(s.gradients), human(s.optimizer),
      human(s.transient), human(s.peak));
}

}  // namespace

void run_job(const Job& job, comm::Communicator& world) {
  if (job.options.dry_run) {
    if (world.rank() == 0) print_dry_run(job);
    return;
  }
  std::optional<Inputs> inputs;
  together(world, [&] { inputs.emplace(job); });
  Loop loop(job, world, *inputs);
  try {
    loop.run();
  } catch (const UsageError& error) {
    // One rank alone may have met it; the others must not wait for this one.
    if (world.size() > 1) throw Error(error.what());
    throw;
  }
}

}  // namespace molen::train
