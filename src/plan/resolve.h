// From a configuration to what runs: architecture, program setting, schedule. Everything that `auto` leaves open is
// decided here, and what is not built yet is refused here; nothing falls back silently.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "arch/architecture.h"
#include "config/config.h"
#include "program/program.h"
#include "program/schedule.h"

namespace molen::plan {

arch::Architecture resolve_architecture(const config::Config& config);

// GFLOP/s of a GEMM of a layer's shape: what `precision.compute = "auto"` decides by.
struct PrecisionRates {
  double fp32 = 0.0, bf16 = 0.0;
  std::string measured = {};  // when, where that was before
};

struct Machine {
  int ranks = 1;        // of the whole job
  int local_ranks = 1;  // on this host
  bool cuda = false;
  int device = 0;  // index of this rank's CUDA device
  // Measures on the device in use, with so many threads. Without it (planning away from the machine) `auto` is fp32 on
  // a CPU and bf16 on CUDA.
  std::function<PrecisionRates(int threads)> measure_precision;
};

// Writes what it decides back into `config` with its origin ("measured", "derived"), so that it is stored and reused.
program::Setting resolve_setting(config::Config& config, const arch::Architecture& arch, const Machine& machine);

// The pipeline schedule of `parallel.schedule` where that is a file.
std::optional<program::Schedule> read_schedule(const config::Config& config);

// Lengths in optimizer steps. `sequences_per_epoch` is needed for epochs only; seconds have no count (returns -1).
std::int64_t steps_of(const config::Config& config, const config::Horizon& horizon, std::string_view key,
                      double sequences_per_epoch);

// Threads per rank that this machine gives: its cores (as the affinity mask has them) over the ranks on it, at least 1.
int auto_threads(int local_ranks);

}  // namespace molen::plan
