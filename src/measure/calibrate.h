// molen calibrate: runs small step programs of many shapes with the executor itself and fits a cost model to the
// measured ops. The samples run under the conditions of a training (same number of ranks at once, threads,
// communicator, order of ops), so an op costs here what it costs there. The cost of an op is the CPU time of its own
// thread; the simulator accounts for threads that share cores.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "measure/calibration_programs.h"
#include "plan/resolve.h"
#include "program/ir/timeline.h"
#include "sim/calibration.h"

namespace molen::measure {

// Collective over `world`. Each rank fits its own samples and, for stages, those of the last rank; only rank 0's result
// is meant to be kept. `progress` is called on rank 0 with the share of the measurement that is done and with the name
// of what is measured.
using CalibrateProgress = std::function<void(double share, const std::string& what)>;
sim::Calibration::Entry calibrate(const CalibrateOptions& options, const std::string& communicator,
                                  comm::Communicator& world, const CalibrateProgress& progress);

// Ranks that share the cores of a machine, each with so many threads.
struct Team {
  int ranks = 1, threads = 1;
};
// Returns the teams by which a machine with so many cores is measured: one rank with all of them; 2, 4 and 8 ranks that
// divide them; and one rank with one thread. Predictions need a team with as many threads a rank. Up to 8 cores, the
// last team beside that of one thread on each core shows how busy cores slow each other down.
std::vector<Team> teams_of(int cores);

// Returns the types that `precision.compute = "auto"` may choose on this machine with `threads` threads a rank: the
// faster of fp32 and bf16 by rank 0's measurement, and also the slower one when it reaches 80 % of the faster, because
// the next measurement may reverse the choice. Collective.
std::vector<DType> likely_precisions(int threads, comm::Communicator& world);

// Timed steps of a program on synthetic tokens, for calibration, comparison and benchmarks. It has the Timeline of each
// repeat on this rank, after one warm-up.
struct SyntheticRun {
  std::vector<program::Timeline> timelines;
  std::optional<Bytes> touched;      // of this rank's arena on the host (exec::Arena::touched)
  std::optional<Bytes> device_peak;  // the largest sum of all allocations on the device: arena and temporaries
  double first_step_end_s = 0.0;     // now() after the warm-up
};
// Runs on the host, or on the CUDA device with the given index; `world` moves the memory of that place. With a document
// mask, each sequence has `documents` documents of equal length, the last of which may be longer.
SyntheticRun run_synthetic(const program::Program& p, comm::Communicator& world, int repeats, int cuda_device = -1,
                           std::int64_t documents = 1);

// Returns the cores on which the ranks of `world` together may run; all ranks are on this machine. Collective.
sim::Cores cores_of(comm::Communicator& world);

}  // namespace molen::measure
