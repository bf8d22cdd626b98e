// The ranks of a job: processes of a launcher (mpirun, srun), threads of this process (--ranks N), or a single rank.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"
#include "plan/resolve.h"

namespace molen::launch {

struct Launch {
  std::string communicator;  // "self", "threads", "mpi", "nccl" (beside MPI, which moves host memory)
  plan::Machine machine;
};

// Decides how ranks communicate. `thread_ranks`: --ranks N without a launcher. Throws UsageError when
// device.communicator cannot be honoured (mpi not built, threads requested under mpirun, ...). Only proofs (`molen
// verify`) run ranks as threads on CUDA devices: with `share`, they may share one. The processes of a launcher then
// stay on the host.
Launch resolve_launch(const config::Config& config, std::optional<int> thread_ranks, bool share = false);

// Returns whether libtorch has a CUDA device here.
bool has_cuda();

// Restricts libtorch, for the whole process, to operators that repeat bit for bit on a device (`train.deterministic`).
// On a device, an operator that has no such form throws an error with its name. To be called before the device's
// libraries are first used.
void require_determinism();

// Returns a launch of ranks as threads of this process, on the host.
Launch launch_threads(int ranks);

// Calls `body` once per rank of this process, each with its world communicator. An error on one rank wakes the others;
// the first error is thrown.
void run_ranks(const Launch& launch, const std::function<void(comm::Communicator&)>& body);

}  // namespace molen::launch
