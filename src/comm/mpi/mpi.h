// Ranks started by mpirun or srun. Where MPI is not built in, `mpi_available` is false and the rest throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace molen::comm {

bool mpi_available();

// What a launcher's environment says: ranks of the job and of this host. size 0: nothing launched this process as a
// rank.
struct LaunchEnvironment {
  int rank = 0, size = 0, local_rank = 0, local_size = 1;
  std::string source;  // "Open MPI", "PMI", "Slurm"
};
// Throws UsageError, with the variable, where they do not say it, or not of one job.
LaunchEnvironment launch_environment();
// The same of another environment: `read` is as getenv.
using ReadVariable = std::function<const char*(const char* name)>;
LaunchEnvironment launch_environment(const ReadVariable& read);

// Who moves the data of broadcast, all_gather and the second half of all_reduce. The rest, and every sum, is ours over
// point-to-point messages in any case, so the results are the same bits.
//   kOwn: messages of ours (mpi/routes.h), so wire bytes are counted. Short ones take a logarithm of the group's size
//         of rounds, long ones go around a ring, gathered blocks in between from each rank to each.
//   kLibrary: the library's collectives, which cannot be asked: wire bytes are absent from the first such call on.
//   kAuto: kOwn in a group that shares a host or has at most 8 ranks, which is what ours were measured on; else
//   kLibrary,
//          for blocks that go from each rank to each enter a host once for every rank there.
enum class MpiCollectives { kOwn, kLibrary, kAuto };

// An all_reduce of up to so many bytes gathers everything everywhere: one exchange, but n-1 times the payload sent by
// each of n ranks; above it is 2(n-1)/n times.
inline constexpr std::int64_t kMpiShort = std::int64_t{1} << 15;

// MPI_COMM_WORLD, initialised at the first call and finalised at exit. One thread at a time may use it.
std::unique_ptr<Communicator> mpi_world(MpiCollectives collectives = MpiCollectives::kAuto);

}  // namespace molen::comm
