// The loop: steps, validation, checkpoints, stopping; the same on every rank.
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <span>

#include "arch/json.h"
#include "base/available_memory.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "checkpoint/folder.h"
#include "comm/nccl/nccl.h"
#include "data/loader.h"
#include "exec/executor.h"
#include "math/allocation.h"
#include "math/gemm.h"
#include "optim/loss_scale.h"
#include "program/build.h"
#include "store/lease.h"
#include "train/checkpointing.h"
#include "train/flight_recorder.h"
#include "train/init.h"
#include "train/inputs.h"
#include "train/job_energy.h"
#include "train/predicted.h"
#include "train/recorder.h"
#include "train/signals.h"
#include "train/together.h"
#include "train/traffic.h"

namespace molen::train {
namespace {

// Resident bytes now, and the most there ever were.
Bytes resident() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, rss = 0;
  in >> pages >> rss;
  return Bytes(rss * ::sysconf(_SC_PAGESIZE));
}
// One product of each kind and shape of the model, in the compute type, so that the library's packing buffers, its
// workspace and the code that it makes for them are there. A part of those that are very large, as the buffers stop
// growing. Operands lie in a mapping of their own, which leaves nothing behind.
void run_products(const Job& job) {
  const c10::InferenceMode inference;
  const auto& a = job.arch;
  const bool aten = job.setting.kernels == arch::Kernels::kAten;
  const DType type = aten ? job.setting.compute : DType::kF32;
  struct Shape {
    std::int64_t m, n, k;
  };
  // Of all rows or, where they are in pieces, of the largest and the smallest.
  std::vector<std::int64_t> heights{job.setting.tokens()};
  if (job.setting.chunked_rows()) {
    heights.clear();
    for (const std::int64_t piece : {std::int64_t{0}, job.setting.tensor_chunks - 1}) {
      const auto [first, last] = program::chunk_rows(job.setting, piece);
      heights.push_back(last - first);
    }
  }
  // MKL's buffers do not depend on the shape.
  const bool by_shape = aten || math::gemm_library() == math::GemmLibrary::kOneDnn;
  std::vector<Shape> shapes = {{job.setting.head_chunk, a.vocabulary, a.hidden}};
  if (by_shape)
    for (const auto& [n, k] :
         {std::pair{a.qkv_size(), a.hidden}, {a.hidden, a.query_size()}, {a.up_size(), a.hidden}, {a.hidden, a.ffn}})
      for (const std::int64_t rows : heights) shapes.push_back({std::min<std::int64_t>(rows, 4096), n, k});
  for (auto [m, n, k] : shapes) {
    n = std::min<std::int64_t>(n, 16384), k = std::min<std::int64_t>(k, by_shape ? 16384 : 1024);
    const std::int64_t x_bytes = math::Scratch::aligned(m * k * size_of(type)),
                       w_bytes = math::Scratch::aligned(n * k * size_of(type));
    const exec::Arena space(Bytes(x_bytes + w_bytes + m * n * size_of(type)), at::kCPU);
    at::Tensor x = space.view(0, type, {m, k}), w = space.view(x_bytes, type, {n, k}),
               y = space.view(x_bytes + w_bytes, type, {m, n});
    const math::AllocationGuard guard(nullptr);
    if (!aten) {
      auto *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *py = y.data_ptr<float>();
      math::matmul_nt(m, n, k, px, pw, false, py);
      math::matmul_nn(m, k, n, py, pw, false, px);
      math::matmul_tn(n, k, m, py, px, false, pw);
      continue;
    }
    const math::LibraryCall call;
    at::mm_out(y, x, w.t());
    at::addmm_out(y, y, x, w.t());
    at::mm_out(x, y, w);
    at::mm_out(w, y.t(), x);
  }
}

struct AlreadyThere {
  Bytes total, workspace;  // of the process; the products' workspace is in the total
};
// What the process holds before any of its arenas. Collective: rank-threads share the process, so that none may be
// ahead of the reading, nor still hold its operands.
AlreadyThere resident_before_arena(const Job& job, comm::Communicator& world) {
  at::set_num_threads(job.setting.threads);
  math::AllocationGuard::install();
  if (!job.machine.cuda) run_products(job);
  world.barrier();
  std::int64_t bytes = resident().value, kept = math::LibraryCall::kept();
  world.all_reduce(&bytes, 1, DType::kI64, comm::Reduce::kMax);
  world.all_reduce(&kept, 1, DType::kI64, job.communicator == "threads" ? comm::Reduce::kSum : comm::Reduce::kMax);
  return {Bytes(bytes), Bytes(kept)};
}

class Loop {
 public:
  Loop(const Job& job, comm::Communicator& world, const Inputs& inputs)
      : job_(job),
        world_(world),
        inputs_(inputs),
        data_(inputs.train),
        validation_(inputs.validation),
        loss_scale_({job.config.precision.loss_scale, 0, 0}, job.config.precision.loss_scale_window),
        base_(resident_before_arena(job, world)),
        devices_(job.communicator == "nccl" ? comm::open_nccl(world, job.machine.device) : nullptr),
        executor_(job.program, world.rank(), devices_ ? devices_.get() : &world, {device(), false, &flight_}) {
    at::set_num_threads(job.setting.threads);
    together(world, [&] { set_course(); });
    if (job.options.cluster) predicted_ = std::make_unique<Predicted>(job, executor_, world);
    open_validation();
    energy_ = std::make_unique<JobEnergy>(world, job.config);
    load();
    together(world, [&] {
      if (world.rank() != 0) return;
      own_directories();
      if (job.config.data.tokenizer) tokenizer_ = read_file(*job.config.data.tokenizer);
      recorder_ = std::make_unique<Recorder>(job, *energy_, total_steps_, stop_step_);
      if (totals_) recorder_->restore_totals(*totals_, step_, *job_.resume_from);
    });
    if (!leases_.empty()) token_ = leases_.back()->token();
    world.broadcast(&token_, 1, DType::kI64, 0);
    start();
  }

  void run() {
    catch_stop_signals();
    data::Loader loader(data_, {next_sample_, job_.setting.global_batch, job_.setting.micro_batch, data_rank(),
                                job_.setting.data_ranks(), 4, job_.setting.document_mask});
    loader_ = &loader;
    if (job_.options.save_initial && step_ == 0) save();
    const double begun = now().value;
    if (step_ >= stop_step_) {
      flight_.phase(store::FlightPhase::kFinish, step_);
      const energy::EnergySoFar used = energy_->so_far();
      if (recorder_)  // no step ran, so there is no peak to compare with the prediction
        recorder_->end(step_, tokens_total_, used, communication_,
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
  void set_course() {
    Course course = course_of(job_, data_);
    total_steps_ = course.total_steps;
    stop_step_ = course.stop_step;
    stop_seconds_ = course.stop_seconds;
    schedule_ = course.schedule;
    optimizer_ = course.optimizer;
    save_every_ = course.save_every;
    validate_every_ = course.validate_every;
  }

  void open_validation() {
    if (validation_.empty()) return;
    program::Program p = job_.evaluation();
    const bool together = p.setting.ranks() > 1;
    evaluator_ = std::make_unique<exec::Executor>(std::move(p), together ? world_.rank() : 0,
                                                  devices_ ? devices_.get() : &world_, exec::Options{device(), false},
                                                  &executor_);
  }

  int data_rank() const { return program::data_rank(job_.setting, executor_.coordinates()); }
  // One of the ranks that see the same samples has their losses to add up.
  bool counts_losses() const { return executor_.coordinates()[mesh::Axis::kTp] == 0 && executor_.program().has_head(); }

  // The run directory and the checkpoints' are this job's alone from here on, and what an earlier one left unfinished
  // is gone.
  void own_directories() {
    store::LeaseOptions options;
    options.waiting = [](const std::string& text) { std::fprintf(stderr, "molen: %s\n", text.c_str()); };
    const fs::path run = run_directory(job_.config), checkpoints = checkpoint_directory(job_.config);
    leases_.push_back(std::make_unique<store::Lease>(run, options));
    if (checkpoints != run / "checkpoints") leases_.push_back(std::make_unique<store::Lease>(checkpoints, options));
    if (path_exists(checkpoints)) checkpoint::recover(checkpoints);
    if (job_.options.resume != "auto") return;
    const auto newest = checkpoint::latest(checkpoints);
    if (newest != (job_.resume_from ? std::optional<fs::path>(*job_.resume_from) : std::nullopt))
      throw UsageError("{}: another job saved here while this one started; start again", checkpoints.string());
  }

  void load() {
    if (!job_.resume_from) {
      initialize_parameters(executor_, static_cast<std::uint64_t>(job_.config.train.seed), job_.setting.threads);
      return;
    }
    std::optional<checkpoint::Checkpoint> from;
    together(world_, [&] { from.emplace(*job_.resume_from); });
    const Json& state = from->state();
    const bool weights_only = !state.contains("step_done");
    load_state(*from, executor_, world_, weights_only);
    if (!weights_only) together(world_, [&] { restore(state, from->path().string()); });
  }

  void start() {
    const std::string hash = state_hash(executor_, world_);
    // Beside the arena, what the loader holds ahead. Beside what was there, pages of libraries that the first steps
    // touch: 5 to 14 MiB were measured.
    constexpr std::int64_t kLibraryPages = 8 << 20;
    const bool threads = job_.communicator == "threads";
    const Bytes peak = executor_.memory().peak, arena = peak + executor_.memory().host;
    double flops = 0.0;
    for (const auto& op : executor_.ops()) flops += op.step->hardware_flops.value;
    world_.all_reduce(&flops, 1, DType::kF64, comm::Reduce::kSum);
    std::int64_t largest = peak.value, all = arena.value;
    world_.all_reduce(&largest, 1, DType::kI64, comm::Reduce::kMax);
    world_.all_reduce(&all, 1, DType::kI64, comm::Reduce::kSum);
    planned_peak_ = largest;
    memory_ = {arena,
               base_.total + Bytes(kLibraryPages),
               Bytes(4 * (job_.setting.document_mask ? 3 : 2) * job_.setting.micro_batch * job_.setting.sequence * 4),
               base_.workspace,
               threads ? world_.size() : 1,
               threads ? Bytes(all) : arena};
    if (recorder_) recorder_->begin(step_, tokens_total_, memory_, hash, flops / world_.size());
    if (recorder_)
      for (const auto& note : inputs_.notes()) recorder_->note(note);
    if (recorder_ && !job_.note.empty()) recorder_->note(job_.note);
    flight_.open(job_, recorder_ ? recorder_->attempt() : 0, world_);
  }

  void restore(const Json& state, const std::string& origin) {
    try {
      const JsonFields fields(state, origin + "/state.json");
      step_ = fields.integer("step_done");
      next_sample_ = fields.integer("next_sample");
      tokens_total_ = fields.integer("tokens_total");
      restore_loss_scale(state, origin);
      totals_ = state.at("totals");
    } catch (const Json::exception& e) {
      throw UsageError("{}: state.json is incomplete: {}", origin, e.what());
    }
  }

  // Runs whose loss was never scaled have none; one that continues them in fp16 (--allow-change) begins with the
  // configuration's.
  void restore_loss_scale(const Json& state, const std::string& origin) {
    if (!state.contains("loss_scale")) {
      if (config::from_json(state.at("config"), origin).precision.scales_loss())
        throw UsageError("{}: state.json is incomplete: no loss_scale of a run in fp16", origin);
      return;
    }
    const std::string where = origin + "/state.json: loss_scale";
    const JsonFields fields(state.at("loss_scale"), where);
    const optim::LossScale::State stored{fields.number("scale"), fields.integer("good_steps"),
                                         fields.integer("skipped_steps")};
    if (stored.skipped > step_) throw UsageError("{}: {} of {} steps skipped", where, stored.skipped, step_);
    try {
      loss_scale_ = optim::LossScale(stored, job_.config.precision.loss_scale_window);
    } catch (const UsageError& error) {
      throw UsageError("{}: {}", where, error.what());
    }
  }

  void one_step() {
    flight_.phase(store::FlightPhase::kTrain, step_ + 1);
    energy_->begin_step();
    double wait = 0.0;
    exec::StepInput input;
    input.step = step_ + 1 - loss_scale_.skipped();
    input.optimizer = optimizer_;
    input.optimizer.lr = schedule_.lr(step_ + 1);
    input.clip = job_.config.optimizer.clip;
    if (job_.setting.scales_loss()) input.loss_scale = loss_scale_.scale();
    input.load = [&](const exec::MicroBatch& to) {
      const data::Batch batch = loader_->next();
      wait += batch.wait_s;
      std::copy(batch.ids.begin(), batch.ids.end(), to.ids);
      std::copy(batch.labels.begin(), batch.labels.end(), to.labels);
      std::copy(batch.document_start.begin(), batch.document_start.end(), to.document_start);
      return static_cast<std::int64_t>(
          std::count_if(batch.labels.begin(), batch.labels.end(), [](std::int32_t l) { return l >= 0; }));
    };
    const exec::StepResult result = executor_.run(input);
    if (result.non_finite && !result.overflow) refuse_non_finite(result);
    ++step_;
    if (job_.setting.scales_loss()) rescale(result);
    communication_.add(result.timeline, result.overflow);
    flight_.step_took(result.timeline.total_s);
    next_sample_ += job_.setting.global_batch;
    tokens_total_ += static_cast<std::int64_t>(result.valid_tokens);
    record(result, input, wait);
    if (predicted_) predicted_->add(result.timeline);
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

  // What the step says about the loss scale of the next. A step that was skipped has used its samples and its place in
  // the schedule. From what all ranks have alike, so no rank can disagree.
  void rescale(const exec::StepResult& result) {
    if (result.overflow)
      loss_scale_.overflow(step_);
    else
      loss_scale_.good();
  }

  void record(const exec::StepResult& result, const exec::StepInput& input, double wait) {
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
    const auto& high = executor_.high_water();
    std::int64_t peak = *std::max_element(high.begin(), high.end());
    world_.all_reduce(&peak, 1, DType::kI64, comm::Reduce::kMax);
    if (!recorder_) return;
    StepRecord r;
    r.step = step_;
    r.loss = result.mean_loss();
    r.grad_norm = result.grad_norm;
    r.lr = input.optimizer.lr;
    if (job_.setting.scales_loss()) r.loss_scale = input.loss_scale;
    r.skipped_steps = loss_scale_.skipped();
    r.skipped = result.overflow;
    r.tokens_total = tokens_total_;
    for (int i = 0; i < program::kNumPhases; ++i)
      r.phase_s[std::string(program::name_of(static_cast<program::Phase>(i)))] = sums[static_cast<std::size_t>(i)];
    r.phase_s["bubble"] = sums[program::kNumPhases];
    r.step_s = sums[program::kNumPhases + 1];
    r.data_wait_s = sums[program::kNumPhases + 2];
    r.memory_peak = peak;
    r.memory_planned = planned_peak_;
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
    flight_.phase(store::FlightPhase::kValidate, step_);
    std::vector<const data::ValidationSet*> sets;
    for (const auto& set : validation_) sets.push_back(set.get());
    const auto result = validate(*evaluator_, sets, {data_rank(), job_.setting.data_ranks(), counts_losses()}, world_,
                                 job_.config.train.validate_batches.value_or(0) * job_.setting.global_batch);
    if (recorder_) recorder_->validation(step_, result);
  }

  void save() {
    if (saved_step_ == step_) return;
    flight_.phase(store::FlightPhase::kCheckpoint, step_);
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
      // Also of a run that goes on in another type: the optimizer counts updates.
      if (const auto& scale = loss_scale_.state(); job_.setting.scales_loss() || scale.skipped > 0)
        o.state["loss_scale"] = {
            {"scale", scale.scale}, {"good_steps", scale.good_steps}, {"skipped_steps", scale.skipped}};
      if (job_.config.data.tokenizer) o.attachments["tokenizer.json"] = tokenizer_;
      o.attachments["config.toml"] = config::to_toml(job_.config);
    }
    o.token = token_;
    if (!leases_.empty()) {
      o.still_owner = [this] {
        for (const auto& lease : leases_) lease->require();
      };
      o.state["run"] = recorder_->identity();
      recorder_->sync();  // what the run says it did up to this checkpoint lasts as long as the checkpoint
    }
    const SavingGuard saving;
    const fs::path path = checkpoint::save(spans_of(executor_), o);
    saved_step_ = step_;
    save_every_.last = now().value;
    if (recorder_) recorder_->checkpoint(step_, path.string(), now().value - start);
  }

  // On all ranks: whether others waited is known together alone.
  void compare_with_prediction(std::int64_t rss) {
    const auto comparison = predicted_->compare();
    if (!recorder_) return;
    if (!comparison) return recorder_->note("no prediction: " + comparison.reason());
    recorder_->prediction(comparison.value(), memory_, executor_.memory().peak.value, executor_.touched(), rss);
  }

  void finish(const std::string& reason) {
    flight_.phase(store::FlightPhase::kFinish, step_);
    const std::int64_t rss = peak_resident().value;
    if (predicted_) compare_with_prediction(rss);
    const energy::EnergySoFar used = energy_->so_far();
    if (recorder_)
      recorder_->end(
          step_, tokens_total_, used, communication_,
          fmt::format("{}; peak resident memory {}, {:.1f}% {} the {} predicted", reason, human(Bytes(rss)),
                      100.0 * std::abs(static_cast<double>(rss) / static_cast<double>(memory_.total().value) - 1.0),
                      rss < memory_.total().value ? "below" : "above", human(memory_.total())));
  }

  at::Device device() const {
    return job_.machine.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job_.machine.device))
                             : at::Device(at::kCPU);
  }

  const Job& job_;
  comm::Communicator& world_;  // moves host memory
  const Inputs& inputs_;
  const data::Dataset& data_;
  const std::vector<std::unique_ptr<data::ValidationSet>>& validation_;
  optim::LossScale loss_scale_;  // the same on all ranks; used where Setting::scales_loss
  AlreadyThere base_;
  std::unique_ptr<comm::Communicator> devices_;  // moves device memory, where that is another one
  FlightRecorder flight_;
  exec::Executor executor_;
  Communication communication_{executor_};
  std::unique_ptr<exec::Executor> evaluator_;
  std::unique_ptr<JobEnergy> energy_;
  std::vector<std::unique_ptr<store::Lease>> leases_;  // rank 0; the last is that of the checkpoints
  std::optional<Json> totals_;                         // of the checkpoint that this run continues
  std::int64_t token_ = 0;                             // of that lease, on every rank
  std::string tokenizer_;                              // rank 0: held, so that a save needs no file but its own
  std::unique_ptr<Recorder> recorder_;
  data::Loader* loader_ = nullptr;
  optim::Schedule schedule_;
  optim::AdamW optimizer_;
  Period save_every_, validate_every_;
  MemoryPrediction memory_;
  std::int64_t planned_peak_ = 0;         // of the largest rank
  std::unique_ptr<Predicted> predicted_;  // where a calibration was given
  std::int64_t total_steps_ = 0, stop_step_ = 0, step_ = 0, next_sample_ = 0, tokens_total_ = 0, saved_step_ = -1;
  double stop_seconds_ = 0.0;
  bool stopped_ = false;  // by a signal
};

}  // namespace

void run_job(const Job& job, comm::Communicator& world) {
  if (job.options.dry_run) return dry_run(job, world);
  ignore_closed_output();
  const auto inputs = open_inputs(job, world);
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
