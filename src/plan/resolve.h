// Turns a configuration into an architecture, a program setting and a schedule. Decides everything that `auto` leaves
// open, and refuses features that are not built yet; nothing falls back silently.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "arch/architecture.h"
#include "config/config.h"
#include "program/ir/program.h"
#include "program/parts/part.h"
#include "program/schedule/schedule.h"

namespace molen::plan {

arch::Architecture resolve_architecture(const config::Config& config);

// The measured GFLOP/s of a GEMM with a layer's shape, from which `precision.compute = "auto"` is decided.
struct PrecisionRates {
  double fp32 = 0.0, bf16 = 0.0;
  std::string measured = {};  // day (UTC); empty: on a device, now
};

struct Machine {
  int ranks = 1;        // of the whole job
  int local_ranks = 1;  // on this host
  bool cuda = false;
  bool described = false;  // of a cluster's description, on which a framework may be predicted; nothing runs on it
  int device = 0;          // index of this rank's CUDA device
  // Threads of a rank where `math.threads` does not say; not set: this machine's cores divided by its ranks.
  std::optional<int> threads = std::nullopt;
  // Measures on the device in use, with `threads` threads. When this function is not set (planning away from the
  // machine), `auto` means fp32 on a CPU and bf16 on CUDA.
  std::function<PrecisionRates(int threads)> measure_precision = {};
};

// Returns the request that the attention of a setting makes to kernels, on the host or on a GPU.
program::KernelRequest attention_request(const program::Setting& s, const arch::Architecture& arch, bool cuda);
// Sets attention kernels that do not work on tiles (math.flash_attention = false). If no such kernels can compute the
// attention, returns the reason and leaves the setting as it is.
std::optional<std::string> leave_tiles(program::Setting& s, const arch::Architecture& arch, bool cuda);

// Returns the program setting of a configuration. Writes its decisions back into `config` with their origin
// ("measured", "derived"), so that they are stored and reused. The keys of [framework] change the setting where the
// machine is described, and are refused on any other.
program::Setting resolve_setting(config::Config& config, const arch::Architecture& arch, const Machine& machine);

// Returns the setting of the program that computes held-out losses beside a training with `setting`: forward only, one
// micro-batch at a time. Without sharded parameters, every rank (or every group of stages, tensor ranks, context ranks
// and expert ranks) has the whole model, and computes alone.
program::Setting evaluation_setting(const program::Setting& setting);

// Returns the pipeline schedule that `parallel.schedule` names, if it names a file.
std::optional<program::Schedule> read_schedule(const config::Config& config);

// Returns a length in optimizer steps. `sequences_per_epoch` is needed for epochs only; seconds have no count (returns
// -1).
std::int64_t steps_of(const config::Config& config, const config::Horizon& horizon, std::string_view key,
                      double sequences_per_epoch);

// Returns the threads per rank: this machine's cores (by the affinity mask) divided by its ranks, at least 1.
int auto_threads(int local_ranks);

}  // namespace molen::plan
