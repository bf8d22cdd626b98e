// The records of a run: the run directory, metrics, events, TensorBoard, Prometheus, traces and the console. Rank 0
// only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cluster/site.h"
#include "launch/traffic.h"
#include "program/ir/timeline.h"
#include "store/metrics.h"
#include "train/observe/job_energy.h"
#include "train/observe/predicted.h"
#include "train/state/noise_scale.h"
#include "train/trainer.h"
#include "train/validation.h"

namespace molen::train {

inline constexpr double kJoulesPerKwh = 3.6e6;

// The losses of the routers of a model with sparse layers, and with a capacity the share that it drops:
// exec::StepResult::balance_loss, z_loss and dropped_share.
struct RouterLosses {
  double balance = 0, z = 0;
  std::optional<double> dropped_share;
};

// One step as the loop knows it. Its sums and means already include all ranks.
struct StepRecord {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<RouterLosses> router;  // present when the model has sparse layers
  std::optional<double> loss_scale;    // present when the loss is scaled: the scale of this step
  std::int64_t skipped_steps = 0;      // of the run so far
  bool skipped = false;                // whether this step was skipped
  std::int64_t tokens_total = 0;
  double step_s = 0, data_wait_s = 0;
  std::map<std::string, double> phase_s;             // by program::phase_keys; sums to step_s
  std::int64_t memory_peak = 0, memory_planned = 0;  // Executor::high_water; MemoryPlan::peak
  std::int64_t first_sample = 0, last_sample = 0;
  energy::StepEnergy energy;                               // of all hosts
  std::optional<store::AtEnd> kwh_at_end, kg_co2e_at_end;  // the forecast, once there is one
  std::optional<double> policy_setting;                    // the clock or power limit of an energy policy (Hz, W)
};

class Recorder {
 public:
  // Creates or reopens the run directory.
  Recorder(const Job& job, const JobEnergy& energy, std::int64_t total_steps, std::int64_t stop_step);
  ~Recorder();

  // Records the start. `start_tokens`: the tokens trained on before this attempt. `hardware_flops`: the FLOPs that a
  // rank executes in a step, averaged over ranks.
  void begin(std::int64_t start_step, std::int64_t start_tokens, const MemoryPrediction& memory,
             const std::string& state_hash, double hardware_flops);
  void step(const StepRecord& record);
  // The consumption of all attempts of the run, with the steps that failures undid.
  struct Spent {
    std::optional<double> joules;  // over the counted scopes; absent: nothing was measured
    std::optional<double> kg;      // CO2e; absent where an attempt that measured energy knew no intensity
    double undone_j = 0.0;         // of earlier attempts
  };
  // `of_attempt`: the joules of this attempt so far; absent without a reading.
  Spent spent(std::optional<double> of_attempt);
  // Returns the site of this attempt; null where none is named.
  const cluster::RunSite* site() const;
  // Takes over train.until of the job's configuration, which has changed: records it, and counts to `total_steps`.
  void set_length(std::int64_t total_steps, std::int64_t stop_step);
  // Records what a budget of the run has come to (docs/formats/events.md, "budget"); its "text" goes to the console.
  void budget(const Json& event);
  void trace(std::int64_t step, const std::vector<program::Expanded>& ops, const program::Timeline& timeline);
  void validation(std::int64_t step, const ValidationResult& result);
  void noise_scale(std::int64_t step, const NoiseScale& scale);  // after a measurement
  void checkpoint(std::int64_t step, const std::string& path, double seconds);
  // Records prediction beside measurement. `touched`: the touched bytes of the arena (exec::Arena::touched).
  void prediction(const Prediction& prediction, const MemoryPrediction& memory, std::int64_t planned_peak,
                  std::optional<Bytes> touched, std::int64_t measured_rss);
  std::int64_t attempt() const;
  Json identity() const;  // {"id", "attempt", "history"}, for a checkpoint
  void sync();            // writes all records so far to disk; reports a failure and tries again later
  // EnergyPolicy::summary: what a policy can set, at the start; and its choice and savings, at the end.
  void policy_begins(std::int64_t step, const Json& summary);
  void policy(std::int64_t step, const Json& summary);
  void note(const std::string& text);  // a line for people, which is also an event
  // Records the end. `tokens` and `used` are as in `totals`.
  void end(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used,
           const launch::Communication& communication, const std::string& reason);

  // Returns the object "totals" of a checkpoint after `step` steps and `tokens` tokens: the sum over all attempts that
  // led there, of which this one has used `used` so far. Also writes the lines of energy.jsonl.
  Json totals(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used);
  // Sets the totals to those of the checkpoint that this attempt continues; to be called before `begin`. Throws
  // UsageError naming `origin` and the key.
  void restore_totals(const Json& totals, std::int64_t step_done, const std::string& origin);
  // Takes over what earlier attempts of this history consumed until they ended, from the last readings of their meters
  // (store/energy_ring.h); to be called after `restore_totals` and before `begin`. `step`: the step from which this
  // attempt goes on. Returns what this attempt's own files say in their heads.
  store::EnergyRingHead take_over_readings(std::int64_t step);
  void forget_earlier_readings();  // removes these files, once this attempt has its own
  std::int64_t history() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace molen::train
