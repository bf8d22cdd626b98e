// From a configuration to what runs: architecture, program setting, schedule. Everything that `auto` leaves open is decided
// here, and what is not built yet is refused here; nothing falls back silently.
#pragma once

#include <cstdint>
#include <string>

#include "arch/architecture.h"
#include "config/config.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "program/program.h"

namespace molen::train {

arch::Architecture resolve_architecture(const config::Config& config);

struct Machine {
  int ranks = 1;          // of the whole job
  int local_ranks = 1;    // on this host
  bool cuda = false;
};

// Writes what it decides back into `config` with its origin ("measured", "derived"), so that it is stored and reused.
program::Setting resolve_setting(config::Config& config, const arch::Architecture& arch, const Machine& machine);

// Lengths in optimizer steps. `sequences_per_epoch` is needed for epochs only; seconds have no count (returns -1).
std::int64_t steps_of(const config::Config& config, const config::Horizon& horizon, std::string_view key, double sequences_per_epoch);

optim::Schedule resolve_schedule(const config::Config& config, std::int64_t total_steps, double sequences_per_epoch);
optim::AdamW resolve_optimizer(const config::Config& config);

// Threads per rank that this machine gives: its cores (as the affinity mask has them) over the ranks on it, at least 1.
int auto_threads(int local_ranks);

// GFLOP/s of a GEMM of a layer's shape in fp32 and bf16 on `threads` threads: what `precision.compute = "auto"` decides by.
struct PrecisionRates {
  double fp32 = 0.0, bf16 = 0.0;
};
PrecisionRates measure_precision(int threads);

}  // namespace molen::train
