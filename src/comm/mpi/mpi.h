// Ranks started by mpirun or srun. In a build without MPI, `mpi_available` is false and the other functions throw.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace molen::comm {

bool mpi_available();

// The ranks of the job and of this host, according to the environment variables of a launcher. `size` is 0 when no
// launcher started this process as a rank.
struct LaunchEnvironment {
  int rank = 0, size = 0, local_rank = 0, local_size = 1;
  std::string source;  // "Open MPI", "PMI", "Slurm"
};
// Reads this process's environment. Throws UsageError naming the variable when variables are missing or contradict each
// other.
LaunchEnvironment launch_environment();
// Reads another environment; `read` works like getenv.
using ReadVariable = std::function<const char*(const char* name)>;
LaunchEnvironment launch_environment(const ReadVariable& read);

// Selects the code that moves the data of broadcast, all_gather and the second half of all_reduce. Everything else, in
// particular every sum, is our own code in each case, so the results have the same bits.
//   kOwn: our own messages (mpi/routes.h), so wire bytes are counted. Short blocks take a number of rounds that is
//         logarithmic in the group's size, long blocks go around a ring; gathered blocks of medium size go from each
//         rank to each.
//   kLibrary: the library's collectives, which do not report wire bytes: they are absent from the first such call on.
//   kAuto: kOwn in a group that shares a host or has at most 8 ranks, the groups on which ours were measured; else
//          kLibrary, because blocks sent from each rank to each would enter a host once for every rank on it.
enum class MpiCollectives { kOwn, kLibrary, kAuto };

// An all_reduce of up to this many bytes gathers all data on every rank. That takes one exchange, but each of n ranks
// sends n-1 times the payload. A larger all_reduce sends 2(n-1)/n times the payload.
inline constexpr std::int64_t kMpiShort = std::int64_t{1} << 15;

// Returns a communicator over MPI_COMM_WORLD. MPI is initialised at the first call and finalised at exit. Several
// threads may use different communicators at once: they take turns in the library.
std::unique_ptr<Communicator> mpi_world(MpiCollectives collectives = MpiCollectives::kAuto);

}  // namespace molen::comm
