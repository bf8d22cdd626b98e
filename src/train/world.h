// The ranks of a job: started by a launcher (mpirun, srun), or as threads of this process (--ranks N), or one alone.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"
#include "plan/resolve.h"

namespace molen::train {

struct Launch {
  std::string communicator;  // "self", "threads", "mpi", "nccl" (over MPI: host memory goes there)
  plan::Machine machine;
};

// Decides how ranks talk. `thread_ranks`: --ranks N outside of a launcher. Throws UsageError where device.communicator
// cannot be honoured (mpi not built, threads asked for under mpirun, ...).
// Thread-ranks on a cuda device are for proofs (`molen verify`), where they may `share` one; the processes of a
// launcher then stay on the host.
Launch resolve_launch(const config::Config& config, std::optional<int> thread_ranks, bool share = false);

// Whether libtorch has a CUDA device here.
bool has_cuda();

// Holds libtorch to operators that repeat bit for bit on a device (`train.deterministic`), for the whole process; one
// that has no such form throws there, by its name. To be called before the device's libraries are.
void require_determinism();

// Ranks as threads of this process, on the host.
Launch launch_threads(int ranks);

// Calls `body` once per rank of this process, each with its world communicator. An error on one rank wakes the others;
// the first one is thrown.
void run_ranks(const Launch& launch, const std::function<void(comm::Communicator&)>& body);

}  // namespace molen::train
