// molen calibrate: runs small step programs of many shapes with the executor itself and fits a cost model to the
// measured ops. The samples run under the conditions of a training (same ranks at once, threads, communicator, order of
// ops), so what they cost here is what they cost there. An op's cost is what its thread computed; that threads share
// cores is the simulator's part.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "program/timeline.h"
#include "sim/calibration.h"

namespace molen::train {

struct CalibrateOptions {
  DType compute = DType::kF32;
  arch::Kernels kernels = arch::Kernels::kFused;
  int threads = 1;
  int repeats = 2;  // timed steps of each shape, after a warm-up, in each round
  int rounds = 3;
  std::int64_t widest = 0;  // models of at most so wide a residual stream; 0: all
};

// `CalibrateOptions::widest` for models of such a width: the next that is measured, or the widest.
std::int64_t calibrated_width(std::int64_t hidden);

// Collective over `world`. Every rank gets the samples of rank 0. `progress` is called on rank 0 with the share that
// is measured, and of what.
using CalibrateProgress = std::function<void(double share, const std::string& what)>;
sim::Calibration::Entry calibrate(const CalibrateOptions& options, const std::string& communicator,
                                  comm::Communicator& world, const CalibrateProgress& progress);

// What `precision.compute = "auto"` comes to on this machine with so many threads a rank: the faster of fp32 and bf16
// by rank 0's measurement, and the other too where it is so near (80 %) that the next measurement may turn the choice.
// Collective.
std::vector<DType> likely_precisions(int threads, comm::Communicator& world);

// Steps of `p` on synthetic tokens, timed; for calibration, comparison and benchmarks. Returns the Timeline of each
// repeat on this rank after one warm-up, and what was touched of its arena (exec::Arena::touched).
struct SyntheticRun {
  std::vector<program::Timeline> timelines;
  std::optional<Bytes> touched;
  double first_step_end_s = 0.0;  // now() behind the warm-up
};
SyntheticRun run_synthetic(const program::Program& p, comm::Communicator& world, int repeats);

std::string cpu_model();

// The cores that the ranks of `world`, all on this machine, may run on together. Collective.
sim::Cores cores_of(comm::Communicator& world);

}  // namespace molen::train
