// The communicator suite under a launcher: mpirun -n N comm_mpi_suite.
#include <cstdio>

#include "comm/comm_suite.h"
#include "comm/mpi/mpi.h"

int main() {
  const auto world = molen::comm::mpi_world();
  try {
    const std::string wrong = molen::comm::suite::Suite(*world).run();
    if (wrong.empty()) {
      if (world->rank() == 0) std::printf("communicator suite on %d MPI ranks: ok\n", world->size());
      return 0;
    }
    std::fprintf(stderr, "%s\n", wrong.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
  }
  world->abort("the suite failed");
  return 1;
}
