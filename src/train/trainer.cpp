// The training loop: steps, validation, checkpoints, stopping; the same on every rank.
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "arch/json.h"
#include "base/available_memory.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/nccl/nccl.h"
#include "data/loader.h"
#include "exec/executor.h"
#include "launch/checkpointing.h"
#include "launch/throw_on_all_ranks.h"
#include "launch/traffic.h"
#include "launch/waiting.h"
#include "program/build/build.h"
#include "train/job/inputs.h"
#include "train/job/optimizer_config.h"
#include "train/job/resident.h"
#include "train/noise_probe.h"
#include "train/observe/flight_recorder.h"
#include "train/observe/job_energy.h"
#include "train/observe/predicted.h"
#include "train/observe/recorder.h"
#include "train/policy/energy_budget.h"
#include "train/policy/energy_policy.h"
#include "train/signals.h"
#include "train/state/ownership.h"
#include "train/state/saved_state.h"
#include "train/state/training_state.h"

namespace molen::train {
namespace {

class Loop {
 public:
  Loop(Job& job, comm::Communicator& world, const Inputs& inputs, Ownership& ownership)
      : job_(job),
        world_(world),
        inputs_(inputs),
        data_(inputs.train),
        validation_(inputs.validation),
        state_(job.config),
        base_(resident_before_arena(job, world)),
        devices_(job.communicator == "nccl" ? comm::open_nccl(world, job.machine.device) : nullptr),
        executor_(job.program, world.rank(), devices_ ? devices_.get() : &world, execution()),
        saved_(job, executor_, world, ownership) {
    at::set_num_threads(job.setting.threads);
    launch::throw_on_all_ranks(world, [&] {
      set_run_length();
      if (job.from && !weights_only(*job.from))
        state_.restore(job.from->state(), job.from->path().string(), job.config);
    });
    if (job.options.cluster) predicted_ = std::make_unique<Predicted>(job, executor_, data_, world);
    open_validation();
    energy_ = std::make_unique<JobEnergy>(
        world, job.config, job.machine.cuda ? std::optional<int>(job.machine.device) : std::nullopt, job.power_figures);
    launch::throw_on_all_ranks(world, [&] {
      require_measured(job.config, *energy_, state_.totals, state_.step, job.resume_from.value_or(""));
    });
    if (job.setting.pipelined() && energy_->divides_by_phases())
      stage_waiting_ = std::make_unique<launch::StageWaiting>(executor_.program(), executor_.ops(), world);
    policy_ = EnergyPolicy::open(world, *energy_, job.config, program::clocks_set_by(job.program),
                                 [&] { return policy_options_here(job.machine.cuda); });
  }

  // Takes the directories, loads the state and begins to record. Returns false, on all ranks, when the job must be
  // prepared again.
  bool open() {
    if (!saved_.open()) return false;
    store::EnergyRingHead readings;
    launch::throw_on_all_ranks(world_, [&] {
      if (world_.rank() != 0) return;
      saved_.enter();
      recorder_ = std::make_unique<Recorder>(job_, *energy_, total_steps_, stop_step_);
      if (state_.totals) recorder_->restore_totals(*state_.totals, state_.step, *job_.resume_from);
      readings = recorder_->take_over_readings(state_.step);
      open_budget();
    });
    const auto problems = energy_->keep_readings(run_directory(job_.config) / store::kEnergyRings, readings);
    if (recorder_) {
      for (const std::string& problem : problems) recorder_->note(problem);
      if (problems.empty()) recorder_->forget_earlier_readings();
    }
    start();
    return true;
  }

  void run() {
    catch_stop_signals();
    data::Loader loader(data_, {state_.next_sample, job_.setting.global_batch, job_.setting.micro_batch, data_rank(),
                                job_.setting.data_ranks(), 4, job_.setting.document_mask});
    batches_.emplace(loader);
    energy_->ran(OutsideSteps::kStart, energy_->opened_ns(), now_ns());
    if (job_.options.save_initial && state_.step == 0) save();
    const double begun = now().value;
    if (state_.step >= stop_step_)
      return end_without_steps(fmt::format("{} ({} steps) was reached before",
                                           stop_step_ < total_steps_ ? "train.stop_after" : "train.until", stop_step_));
    if (budget_used_up()) return end_without_steps(budget_ ? budget_->reason() : "");
    std::string reason;
    while (state_.step < total_steps_) {
      one_step();
      const auto [stop, why, save_due] = decide(begun);
      const bool last = stop || state_.step == total_steps_;
      // After a stop signal there is no validation: the launcher may leave only a second to save in, and the run is not
      // at its end.
      if (!validation_.empty() && !stopped_ && (validate_every_.due(state_.step) || validate_now_ || last))
        run_validation();
      if (save_due || last) save();
      if (stop) {
        if (state_.step < total_steps_) reason = why;
        break;
      }
    }
    if (reason.empty())
      reason = fmt::format("reached train.until ({} steps{})", total_steps_,
                           shrunk_ ? ", which energy.on_budget = \"shrink\" has set" : "");
    finish(reason);
  }

  // Returns, on all ranks, whether a budget ended the run before its schedule's end.
  bool ended_by_budget() const { return ended_by_budget_; }

 private:
  // Rank 0.
  void open_budget() {
    if (energy_->coverage().summed.empty()) return;
    EnergyBudget::Length length{total_steps_, schedule_.warmup_steps, save_every_.steps, save_every_.seconds,
                                validation_.empty() ? 0 : validate_every_.steps};
    budget_ = std::make_unique<EnergyBudget>(job_.config, length, energy_->coverage().partial(), recorder_->site(),
                                             wall_time);
    if (state_.budget) budget_->restore(*state_.budget, *job_.resume_from);
  }

  // Rank 0. A meter that sees the devices alone is compared with what is predicted of them.
  void warn_of_budget() {
    const auto step = predicted_->joules_of_step();
    if (!step) return recorder_->note("the budget is compared with no prediction: " + step.reason());
    const bool devices = energy_->coverage().partial() == "gpu only";
    const std::string warning = budget_->warning(devices ? step.value().devices : step.value().computers, state_.step,
                                                 recorder_->spent(std::nullopt), *job_.options.cluster);
    if (!warning.empty()) recorder_->note(warning);
  }

  // Returns, on all ranks, whether the budget pays for no step of this attempt. Collective.
  bool budget_used_up() {
    if (!has_budget(job_.config)) return false;
    const energy::EnergySoFar used = energy_->so_far();
    std::int32_t up = budget_ && budget_->used_up(state_.step, recorder_->spent(used.total_j)) ? 1 : 0;
    world_.all_reduce(&up, 1, DType::kI32, comm::Reduce::kMax);
    ended_by_budget_ = up != 0;
    return ended_by_budget_;
  }

  // No step ran, so there is no peak to compare with the prediction.
  void end_without_steps(const std::string& why) {
    flight_.phase(store::FlightPhase::kFinish, state_.step);
    const energy::EnergySoFar used = energy_->so_far();
    if (recorder_) {
      tell_budget_end(used);
      recorder_->end(state_.step, state_.tokens_total, used, communication_, "nothing to do, " + why);
    }
    energy_->end(state_.step);
  }

  void set_run_length() {
    RunLength run_length = run_length_of(job_, data_);
    total_steps_ = run_length.total_steps;
    stop_step_ = run_length.stop_step;
    stop_seconds_ = run_length.stop_seconds;
    schedule_ = run_length.schedule;
    optimizer_ = run_length.optimizer;
    save_every_ = run_length.save_every;
    validate_every_ = run_length.validate_every;
  }

  void open_validation() {
    if (validation_.empty()) return;
    program::Program p = job_.evaluation();
    const bool together = p.setting.ranks() > 1;
    evaluator_ = std::make_unique<exec::Executor>(std::move(p), together ? world_.rank() : 0,
                                                  devices_ ? devices_.get() : &world_, exec::Options{device(), false},
                                                  &executor_);
  }

  int data_rank() const { return program::data_rank(executor_.program().grid, executor_.coordinates()); }
  // Returns whether this rank's losses count: when several ranks see the same samples, only one of them counts.
  bool counts_losses() const { return executor_.coordinates()[mesh::Axis::kTp] == 0 && executor_.program().has_head(); }

  void start() {
    const std::string hash = launch::state_hash(executor_, world_);
    // `other` is the memory of the batches that the loader holds ahead. The base includes an estimate of the pages of
    // libraries that the first steps touch (5 to 14 MiB were measured).
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
    if (recorder_) recorder_->begin(state_.step, state_.tokens_total, memory_, hash, flops / world_.size());
    if (recorder_ && policy_) recorder_->policy_begins(state_.step, policy_->summary());
    if (recorder_)
      for (const auto& note : inputs_.notes()) recorder_->note(note);
    if (recorder_ && !job_.note.empty()) recorder_->note(job_.note);
    if (budget_ && has_budget(job_.config) && predicted_) warn_of_budget();
    job_.from.reset();  // releases its files and its index
    const std::string unwatched = flight_.open(job_, recorder_ ? recorder_->attempt() : 0, world_);
    if (recorder_ && !unwatched.empty())
      recorder_->note(fmt::format(
          "{}; the run goes on without a flight recorder, and no rank will notice that another one has died or hangs",
          unwatched));
  }

  void one_step() {
    flight_.phase(store::FlightPhase::kTrain, state_.step + 1);
    exec::StepInput input;
    input.step = state_.step + 1 - state_.loss_scale.skipped();
    input.optimizer = optimizer_;
    input.optimizer.lr = schedule_.lr(state_.step + 1);
    input.clip = job_.config.optimizer.clip;
    if (job_.setting.scales_loss()) input.loss_scale = state_.loss_scale.scale();
    input.load = [&](const exec::MicroBatch& to) {
      const data::Batch batch = batches_->next();
      return fill(to, batch, job_.setting.sequence, batch.count);
    };
    const auto small = small_batch(input);
    energy_->begin_step();
    const exec::StepResult result = executor_.run(input);
    const double wait = book_times(result.timeline);
    if (result.non_finite && !result.overflow) refuse_non_finite(result);
    ++state_.step;
    if (job_.setting.scales_loss()) rescale(result);
    communication_.add(result.timeline, result.overflow);
    flight_.step_took(result.timeline.total_s);
    state_.next_sample += job_.setting.global_batch;
    state_.tokens_total += static_cast<std::int64_t>(result.valid_tokens);
    record(result, input, wait);
    if (small) record_noise(*small, result);
    if (predicted_ && !(policy_ && policy_->lowers())) predicted_->add(result.timeline);
  }

  // Gives the times of a pass to the joules of phases. Returns the seconds for which the pass waited for the loader.
  double book_times(const program::Timeline& timeline) {
    const std::vector<data::LoaderWait> waits = batches_->take_waits();
    if (stage_waiting_) {
      // A copy, so that traces and predictions do not differ between runs with and without a counter.
      program::Timeline with_waiting = timeline;
      stage_waiting_->set(with_waiting);
      energy_->ran(executor_.program(), executor_.ops(), with_waiting, waits);
    } else {
      energy_->ran(executor_.program(), executor_.ops(), timeline, waits);
    }
    double seconds = 0.0;
    for (const data::LoaderWait& wait : waits) seconds += wait.seconds();
    return seconds;
  }

  // Where the noise scale is due, runs the coming step on the first of its samples, whose gradient is compared with
  // that of the step. Its joules count as those of its phases, outside of any step.
  std::optional<SmallBatch> small_batch(const exec::StepInput& input) {
    const std::int64_t every = job_.config.train.noise_scale_every;
    if (every == 0 || (state_.step + 1) % every != 0) return std::nullopt;
    SmallBatch small =
        run_small(executor_, input, *batches_, state_.next_sample + small_batch_of(job_.setting.global_batch));
    book_times(small.timeline);  // its waits for the loader are in no step
    communication_.add(small.timeline, true);
    return small;
  }

  void record_noise(const SmallBatch& small, const exec::StepResult& step) {
    if (!small.norm || step.non_finite || small.tokens >= step.valid_tokens) return;
    state_.noise_scale.add({small.tokens, step.valid_tokens, *small.norm, step.grad_norm});
    if (recorder_) recorder_->noise_scale(state_.step, state_.noise_scale);
  }

  [[noreturn]] void refuse_non_finite(const exec::StepResult& result) {
    std::string places;
    for (std::int64_t s = state_.next_sample; s < state_.next_sample + job_.setting.global_batch; ++s)
      places += "\n  " + data_.describe(s);
    throw Error(
        "step {}: the loss ({}) or the gradient norm ({}) is not finite; the optimizer was not run. Samples {} to {} "
        "of the global order:{}",
        state_.step + 1, result.loss_sum / result.valid_tokens, result.grad_norm, state_.next_sample,
        state_.next_sample + job_.setting.global_batch - 1, places);
  }

  // Updates the loss scale for the next step. A skipped step has used its samples and its place in the schedule. The
  // decision uses only values that are equal on all ranks, so ranks cannot disagree.
  void rescale(const exec::StepResult& result) {
    if (result.overflow)
      state_.loss_scale.overflow(state_.step);
    else
      state_.loss_scale.good();
  }

  void record(const exec::StepResult& result, const exec::StepInput& input, double wait) {
    const auto phases = program::phase_seconds(job_.setting, executor_.ops(), result.timeline);
    // The values become means over ranks, except the peak of memory, which is a maximum.
    std::vector<double> sums = phases.values();
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
    r.step = state_.step;
    r.loss = result.mean_loss();
    r.grad_norm = result.grad_norm;
    r.lr = input.optimizer.lr;
    if (job_.arch.sparse()) r.router = {result.balance_loss, result.z_loss, {}};
    if (job_.arch.drops_tokens()) r.router->dropped_share = result.dropped_share;
    if (job_.setting.scales_loss()) r.loss_scale = input.loss_scale;
    r.skipped_steps = state_.loss_scale.skipped();
    r.skipped = result.overflow;
    r.tokens_total = state_.tokens_total;
    const auto keys = program::phase_keys();
    for (std::size_t i = 0; i < keys.size(); ++i) r.phase_s[keys[i]] = sums[i];
    r.step_s = sums[keys.size()];
    r.data_wait_s = sums[keys.size() + 1];
    r.memory_peak = peak;
    r.memory_planned = planned_peak_;
    r.first_sample = state_.next_sample - job_.setting.global_batch;
    r.last_sample = state_.next_sample - 1;
    r.energy = energy_->step(std::span(sums).subspan(means));
    if (policy_) r.policy_setting = policy_->setting();
    if (budget_) forecast(r);
    recorder_->step(r);
    // With energy.on_budget = "slow", the reference holds until the forecast exceeds the budget.
    if (policy_ && (!job_.config.energy.slows() || (budget_ && budget_->slowing()))) policy_->took(reading_of(r));
    if (budget_ && policy_) budget_->slow_chosen(policy_->has_chosen());
    tell_policy_news();
    tell_budget_events();
    const auto& traced = job_.config.train.trace_steps;
    if (std::find(traced.begin(), traced.end(), state_.step) != traced.end())
      recorder_->trace(state_.step, executor_.ops(), result.timeline);
  }

  void forecast(StepRecord& r) {
    budget_->took({r.step, now().value, r.energy.so_far_j, r.energy.added_j,
                   r.skipped ? std::nullopt : std::optional(r.loss), recorder_->spent(r.energy.so_far_j)});
    r.kwh_at_end = budget_->kwh_at_end(), r.kg_co2e_at_end = budget_->kg_co2e_at_end();
  }

  void tell_budget_events() {
    if (!budget_) return;
    for (const Json& event : budget_->take_events()) recorder_->budget(event);
  }
  void tell_budget_end(const energy::EnergySoFar& used) {
    if (budget_ && has_budget(job_.config))
      recorder_->budget(budget_->end(state_.step, recorder_->spent(used.total_j)));
  }

  static policy::StepReading reading_of(const StepRecord& r) {
    policy::StepReading reading{Seconds(r.step_s), {}};
    if (r.energy.added_j) reading.joules = Joules(*r.energy.added_j);
    return reading;
  }

  void tell_policy_news() {
    if (policy_)
      for (const std::string& news : policy_->take_news()) recorder_->note(news);
  }

  struct Decision {
    bool stop;
    std::string why;
    bool save;
  };
  // Makes all decisions that depend on a clock or a signal on all ranks together.
  Decision decide(double begun) {
    const EnergyBudget::Wanted budget = budget_ ? budget_->wanted() : EnergyBudget::Wanted{};
    std::int32_t flags[10] = {stop_requested() ? 1 : 0,
                              stop_seconds_ > 0 && now().value - begun >= stop_seconds_ ? 1 : 0,
                              save_every_.due(state_.step) ? 1 : 0,
                              energy_->phases_due() ? 1 : 0,
                              policy_ && policy_->refused() ? 1 : 0,
                              policy_ ? policy_->wanted() : 0,
                              budget.stop ? 1 : 0,
                              budget.save ? 1 : 0,
                              budget.validation ? 1 : 0,
                              budget.shrink_to > 0 ? 1 : 0};
    world_.all_reduce(flags, 10, DType::kI32, comm::Reduce::kMax);
    if (flags[3]) energy_->collect_phases();
    if (policy_) policy_->set(flags[5], flags[4] != 0);
    if (flags[9]) shrink_to(budget.shrink_to);
    validate_now_ = flags[8] != 0;
    stopped_ = flags[0] != 0;
    if (stopped_) return {true, "stopped by a signal", true};
    ended_by_budget_ = flags[6] != 0;
    if (ended_by_budget_) return {true, budget_ ? budget_->reason() : "", true};
    if (flags[1]) return {true, "reached train.stop_after", true};
    if (state_.step >= stop_step_) return {true, fmt::format("reached train.stop_after ({} steps)", stop_step_), true};
    return {false, "", flags[2] != 0 || flags[7] != 0};
  }

  // Ends the schedule after so many steps, which rank 0 knows. The configuration of the checkpoints and of the run
  // directory has the new length, as if it had been given at a resume. Collective.
  void shrink_to(std::int64_t steps) {
    world_.broadcast(&steps, 1, DType::kI64, 0);
    config::assign(
        job_.config, "train.until", fmt::format("{} steps", steps),
        {config::Origin::Kind::kOther, fmt::format("energy.on_budget = \"shrink\" after step {}", state_.step)});
    schedule_ = resolve_schedule(job_.config, steps, static_cast<double>(data_.sequences()));
    total_steps_ = steps, stop_step_ = std::min(stop_step_, steps);
    shrunk_ = true;
    if (budget_) budget_->shrink();
    if (recorder_) recorder_->set_length(total_steps_, stop_step_);
    tell_budget_events();
  }

  void run_validation() {
    flight_.phase(store::FlightPhase::kValidate, state_.step);
    const std::int64_t start_ns = now_ns();
    std::vector<const data::ValidationSet*> sets;
    for (const auto& set : validation_) sets.push_back(set.get());
    const auto result = validate(*evaluator_, sets, {data_rank(), job_.setting.data_ranks(), counts_losses()}, world_,
                                 job_.config.train.validate_batches.value_or(0) * job_.setting.global_batch);
    const std::int64_t end_ns = now_ns();
    energy_->ran(OutsideSteps::kValidation, start_ns, end_ns);
    if (budget_) budget_->validated(static_cast<double>(end_ns - start_ns) * 1e-9);
    if (recorder_) recorder_->validation(state_.step, result);
  }

  void save() {
    if (saved_step_ == state_.step) return;
    flight_.phase(store::FlightPhase::kCheckpoint, state_.step);
    const std::int64_t start_ns = now_ns();
    const energy::EnergySoFar used = energy_->so_far();
    Json state;
    if (recorder_) {
      state = state_.to_json(job_.setting.scales_loss());
      state.update({{"data_digest", data_.digest()},
                    {"ranks", world_.size()},
                    {"seed", job_.config.train.seed},
                    {"rng", {{"init", "philox4x32-10 by parameter name"}, {"data_seed", job_.config.data.seed}}},
                    {"lr", schedule_.lr(std::max<std::int64_t>(1, state_.step))},
                    {"total_steps", total_steps_},
                    {"config", config::to_json(job_.config)},
                    {"arch", arch::to_json(job_.arch)},
                    {"run", recorder_->identity()},
                    {"totals", recorder_->totals(state_.step, state_.tokens_total, used)}});
      if (budget_ || state_.budget) state["budget"] = budget_ ? budget_->state() : *state_.budget;
      recorder_->sync();  // the records up to this checkpoint become as durable as the checkpoint
    }
    const fs::path path = saved_.save(state_.step, std::move(state));
    saved_step_ = state_.step;
    const std::int64_t end_ns = now_ns();
    save_every_.last = now().value;
    energy_->ran(OutsideSteps::kCheckpoint, start_ns, end_ns);
    const double seconds = static_cast<double>(end_ns - start_ns) * 1e-9;
    if (budget_) budget_->saved(seconds);
    if (recorder_) recorder_->checkpoint(state_.step, path.string(), seconds);
  }

  // Runs on all ranks, because only their times together show how long each waited for others.
  void compare_with_prediction(std::int64_t rss) {
    const auto comparison = predicted_->compare();
    if (!recorder_) return;
    if (!comparison) return recorder_->note("no prediction: " + comparison.reason());
    recorder_->prediction(comparison.value(), memory_, executor_.memory().peak.value, executor_.touched(), rss);
  }

  void finish(const std::string& reason) {
    flight_.phase(store::FlightPhase::kFinish, state_.step);
    const std::int64_t rss = peak_resident().value;
    if (predicted_) compare_with_prediction(rss);
    if (policy_) policy_->end();
    if (policy_) policy_->gather_news();
    const energy::EnergySoFar used = energy_->so_far();
    energy_->end(state_.step);
    if (!recorder_) return;
    tell_policy_news();
    if (policy_) recorder_->policy(state_.step, policy_->summary());
    tell_budget_end(used);
    recorder_->end(
        state_.step, state_.tokens_total, used, communication_,
        fmt::format("{}; peak resident memory {}, {:.1f}% {} the {} predicted", reason, human(Bytes(rss)),
                    100.0 * std::abs(static_cast<double>(rss) / static_cast<double>(memory_.total().value) - 1.0),
                    rss < memory_.total().value ? "below" : "above", human(memory_.total())));
  }

  exec::Options execution() {
    exec::Options options{device(), false, &flight_};
    options.set_clock = [this](std::int64_t khz) {
      if (policy_) policy_->set_by_program(khz);
    };
    return options;
  }

  at::Device device() const {
    return job_.machine.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job_.machine.device))
                             : at::Device(at::kCPU);
  }

  Job& job_;
  comm::Communicator& world_;  // moves host memory
  const Inputs& inputs_;
  const data::Dataset& data_;
  const std::vector<std::unique_ptr<data::ValidationSet>>& validation_;
  TrainingState state_;
  Resident base_;
  std::unique_ptr<comm::Communicator> devices_;  // moves device memory, when `world_` does not
  FlightRecorder flight_;
  exec::Executor executor_;
  SavedState saved_;
  launch::Communication communication_{executor_};
  std::unique_ptr<exec::Executor> evaluator_;
  std::unique_ptr<JobEnergy> energy_;
  std::unique_ptr<launch::StageWaiting> stage_waiting_;  // of a pipeline whose joules are divided among phases
  std::unique_ptr<EnergyPolicy> policy_;                 // null where nothing is set
  std::unique_ptr<Recorder> recorder_;
  std::optional<Batches> batches_;
  std::unique_ptr<EnergyBudget> budget_;  // on rank 0, where energy is measured
  optim::Schedule schedule_;
  optim::Options optimizer_;
  Period save_every_, validate_every_;
  MemoryPrediction memory_;
  std::int64_t planned_peak_ = 0;         // of the largest rank
  std::unique_ptr<Predicted> predicted_;  // when a calibration was given
  std::int64_t total_steps_ = 0, stop_step_ = 0, saved_step_ = -1;
  double stop_seconds_ = 0.0;
  bool stopped_ = false;       // by a signal
  bool validate_now_ = false;  // after this step, whatever train.validate_every says
  bool ended_by_budget_ = false, shrunk_ = false;
};

// Returns nothing, on all ranks, when the job must be prepared again.
std::optional<Ended> run_job(Job& job, Ownership& ownership, comm::Communicator& world) {
  const auto inputs = open_inputs(job, world);
  Loop loop(job, world, *inputs, ownership);
  if (!loop.open()) return std::nullopt;
  try {
    loop.run();
  } catch (const UsageError& error) {
    // One rank alone may have met the error. As an Error it ends the job at once, so that the other ranks do not wait.
    if (world.size() > 1) throw Error(error.what());
    throw;
  }
  return loop.ended_by_budget() ? Ended::kByBudget : Ended::kAsAsked;
}

}  // namespace

Ended train(const config::Config& config, const plan::Machine& machine, const std::string& communicator,
            const TrainOptions& options, comm::Communicator& world) {
  if (!options.dry_run) ignore_closed_output();
  Ownership ownership;
  while (true) {
    Job job = prepare_job(config, machine, communicator, options, world, ownership.run_name());
    if (options.dry_run) {
      dry_run(job, world);
      return Ended::kAsAsked;
    }
    if (const auto ended = run_job(job, ownership, world)) return *ended;
  }
}

}  // namespace molen::train
