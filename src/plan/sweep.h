// Experiments: the trials of a grid and of the sizes of a job, their rows, and how each size speeds the step up.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "plan/grid.h"
#include "plan/trial.h"

namespace molen::plan {

// The size of a job: ranks, or the nodes of a cluster that give them. 0: not known here, since a launcher decides.
struct JobSize {
  int nodes = 0, ranks = 0;
  int amount() const { return nodes > 0 ? nodes : ranks; }  // by which sizes of one list compare
};

struct SweepPlan {
  std::vector<GridAxis> grid;  // no axis: one point
  std::vector<JobSize> sizes;  // at least one; their amounts rise
  Scaling scaling = Scaling::kNone;
  bool measured = false;  // else predicted
  std::string cluster;    // of predictions
  // The conditions that decide a trial's outcome besides its configuration and size. For predictions they are the text
  // of the cluster's description; for trainings, the launcher, the number of steps, this machine and the version of
  // molen. They are part of a trial's identity.
  std::string conditions;
  int concurrent = 1;        // trials that run at a time
  double noise_scale = 0.0;  // gradient noise scale in tokens, for the time to a loss; 0: not known
  std::int64_t trials() const { return points_of(grid) * static_cast<std::int64_t>(sizes.size()); }
};

// One trial of an experiment. Rows are in the order of the points of the grid; the sizes of a point are side by side.
struct TrialRow {
  std::string trial;               // 64 hexadecimal digits, of its configuration, size and conditions
  std::vector<std::string> point;  // of each axis of the grid, the value as it was given
  Json keys = Json::object();      // the same as {"batch.micro": 1}
  JobSize size;
  std::string model, framework;   // the configuration's, and its framework.kind; "" if it was refused
  std::int64_t global_batch = 0;  // sequences; 0 if the configuration was refused
  Outcome outcome;
  std::string run;    // run directory of a measured trial
  bool kept = false;  // from an earlier sweep, and not measured again
  // With scaling: `ideal` is the size over the first size. `speed_up` is the tokens per second over those of the first
  // size of the same point that has figures, times the ideal of that one, so that a model that does not fit on the
  // first size begins on the ideal line. `efficiency` is their ratio. Absent: the trial has no figures.
  std::optional<double> speed_up, ideal, efficiency;
  bool has_step() const { return outcome.kind == Outcome::Kind::kStep; }
};

// Loads the configuration with more assignments, as `--set` makes them. Throws UsageError.
using LoadTrial = std::function<config::Config(const std::vector<std::string>& sets)>;
// Predicts or measures a trial whose row has its identity, size and point. May set `run` of the row. May be called by
// several threads at once, if the plan says so.
using TryTrial = std::function<Outcome(const config::Config& config, TrialRow& row)>;

struct SweepCalls {
  LoadTrial load;
  TryTrial attempt;
  // Called by one thread at a time: before a trial that is not kept, and after each trial.
  std::function<void(const TrialRow&row, std::int64_t index)> begin, end;
};

// Runs all trials; rows come back in order. `kept` has the rows of an earlier sweep by their identity: a trial with the
// same identity that has a step is not run again. Others are, because their reason may lie outside the configuration:
// data that are there now, or the memory that a neighbour took. A UsageError of a trial is its outcome; other errors
// end the sweep.
std::vector<TrialRow> run_sweep(const SweepPlan& plan, const SweepCalls& calls,
                                const std::map<std::string, TrialRow>& kept);

// Returns the assignments of a trial: those of its point and, with weak scaling, the global batch of its size. `batch`
// is batch.global of the point, which belongs to the first size.
std::vector<std::string> assignments_of(const SweepPlan& plan, std::int64_t index, std::int64_t batch);

// Returns the identity of a trial. It does not depend on the tables [run] and [checkpoint].
std::string identity_of_trial(const SweepPlan& plan, const JobSize& size, const config::Config& config);

// Throws UsageError if the global batch of some trial would be no whole number under weak scaling. `batch` is that of
// the configuration; the values of batch.global in the grid stand in its place.
void require_weak_batches(const SweepPlan& plan, std::int64_t batch);

// Sets speed_up, ideal and efficiency of all rows.
void add_scaling(const SweepPlan& plan, std::vector<TrialRow>& rows);

// One line of sweep.jsonl (docs/formats/sweep.md), and the row of a line. `from_json` throws UsageError with `origin`
// for a line of another form.
Json to_json(const SweepPlan& plan, const TrialRow& row);
TrialRow row_from_json(const Json& json, std::string_view origin);

// sweep.csv: a header and one line for each row (RFC 4180), with the same figures; an absent figure is an empty cell.
std::string to_csv(const SweepPlan& plan, const std::vector<TrialRow>& rows);

// The table that a terminal shows: a row of headers, then one row a trial. The last column has reasons.
std::vector<std::vector<std::string>> table_of(const SweepPlan& plan, const std::vector<TrialRow>& rows);

// Returns what the interval of a step is: a percentile is of steps that were measured; a prediction has a probability.
std::string interval_name(bool measured);

// Returns "out of memory", "refused", "failed", "not calibrated" or "step", with blanks or, as sweep.jsonl has it,
// underscores.
std::string name_of(Outcome::Kind kind);

// Returns the different machines on which the rows with a step were measured: "NVIDIA H100 (AMD EPYC 9334)".
std::vector<std::string> machines_of(const std::vector<TrialRow>& rows);

// Returns framework.kind of the rows whose configuration was not refused; nullopt: they differ, or there are none.
std::optional<std::string> framework_of(const std::vector<TrialRow>& rows);

// Returns "llama3-8b on 4 nodes of snellius-h100, predicted": of the model, the framework if it is not molen, the size
// and the cluster those that all rows share. The size is in nodes or in ranks ("16 ranks"), as it was given.
std::string title_of(const SweepPlan& plan, const std::vector<TrialRow>& rows);

// Returns "micro 4, FULL_SHARD, 2 nodes": a trial by its values, without those of the axes that `without` names.
std::string label_of(const SweepPlan& plan, const TrialRow& row, std::optional<std::size_t> without = std::nullopt);

}  // namespace molen::plan
