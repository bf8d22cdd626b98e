// Ranks started by mpirun or srun. Where MPI is not built in, `mpi_available` is false and the rest throws.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace molen::comm {

bool mpi_available();

// What a launcher's environment says: ranks of the job and of this host. size 0: nothing launched this process as a
// rank.
struct LaunchEnvironment {
  int rank = 0, size = 0, local_rank = 0, local_size = 1;
  std::string source;  // "Open MPI", "PMIx", "Slurm", ...
};
LaunchEnvironment launch_environment();

// MPI_COMM_WORLD, initialised at the first call and finalised at exit. One thread at a time may use it.
std::unique_ptr<Communicator> mpi_world();

}  // namespace molen::comm
