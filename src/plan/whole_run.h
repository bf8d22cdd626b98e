// The time and energy of a whole run: its steps, and what comes on top of them on a real cluster. The step is predicted
// by the simulator or measured; the rest follows by formulas from the figures of the cluster (docs/whole-run.md).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "arch/architecture.h"
#include "base/units.h"
#include "plan/calculus.h"
#include "plan/reliability.h"
#include "program/ir/program.h"

namespace molen::plan {

// Returns the bytes of the tensors of a checkpoint: the weights that the optimizer updates, and its states. Index and
// headers are not included; they do not grow with the tensors (docs/formats/checkpoint.md).
Bytes checkpoint_bytes(const arch::Architecture& arch, const program::Setting& setting);

// The power of all computers of a job (W): while they run steps, and while they wait.
struct RunPower {
  Estimate working, waiting;
};

// Everything that a whole run follows from.
struct RunPlan {
  std::int64_t steps = 0;       // of the run, at least 1
  std::int64_t save_every = 0;  // steps from one checkpoint to the next, at least 1; or 0, and:
  double save_every_s = 0.0;    // a checkpoint follows the first step that ends so long after the last one, in s
  std::int64_t evaluations = 0;
  std::int64_t noise_scales = 0;  // measurements of the gradient noise scale, each of which takes as long as a step
  Estimate step;                  // s of a step, without differences between devices
  Estimate evaluation;            // s of one evaluation, likewise
  Bytes checkpoint;               // of all ranks
  Bytes batch;                    // that all ranks read for a step
  int devices_of_node = 1, nodes = 1;  // of the job
  RunFigures figures;
  RunPower power;
  Estimate pue, intensity;  // of the site; kg CO2e per J of its electricity
};

// The parts of the time of a run.
//   kUseful       the steps, as predicted
//   kSlowest      waiting for the slowest rank of each step
//   kData         waiting for training data, where a batch takes longer to read than a step to compute
//   kEvaluation   validations and measurements of the noise scale, with their own waiting for the slowest rank
//   kCheckpoints  saving; all ranks wait until the checkpoint is on disk
//   kRedone       work that failures lost
//   kRestarts     finding a failure, starting again, and loading the checkpoint
enum class RunPart { kUseful, kSlowest, kData, kEvaluation, kCheckpoints, kRedone, kRestarts };
inline constexpr std::size_t kRunParts = 7;
std::string_view name_of(RunPart part);  // "useful", "slowest_rank", "data", ...

// The expectations have the intervals that follow from the spreads of the figures: each figure is moved to both ends of
// its own interval while the others stay, and the relative changes add in quadrature (Estimate).
struct WholeRun {
  std::array<Estimate, kRunParts> parts;  // s, by RunPart
  // s from the first start to the end, the sum of the parts. Its interval also has the chance of the failures
  // themselves, as a normal distribution of their number and times.
  Estimate total;
  Estimate failures;     // number; the interval has its chance too
  double slowest = 1.0;  // factor of the slowest rank on a step
  Estimate save;         // s of one checkpoint
  Estimate load;         // s of loading one
  double job_mtbf_s = 0.0;
  std::int64_t save_every = 0, saves = 0;  // steps between checkpoints, and their number; the last step is saved always
  // The interval between checkpoints with which the run ends soonest, and Young's approximation: s of work. In steps,
  // at least one and at most the run; and the expected time of the run with it.
  double best_s = 0.0, young_s = 0.0;
  std::int64_t best_every = 0;
  double best_total_s = 0.0;
  Estimate energy;     // J of the computers
  Estimate lost;       // J of it that went to other parts than kUseful and kEvaluation
  Estimate site;       // J, with the site's cooling and losses
  Estimate emissions;  // kg CO2e
  const Estimate& of(RunPart part) const { return parts[static_cast<std::size_t>(part)]; }
  // Returns the share of the time that useful steps take.
  double goodput() const { return of(RunPart::kUseful).value / total.value; }
  // Returns whether the run ends at all. It does not if failures come so often that the expectation exceeds a double.
  bool ends() const;
};
// Returns the prediction. Throws Error for a plan outside the ranges above.
WholeRun whole_run(const RunPlan& plan);

}  // namespace molen::plan
