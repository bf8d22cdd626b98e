#include "base/error.h"
#include "comm/mpi/mpi.h"

namespace molen::comm {

bool mpi_available() {
  return false;
}
std::unique_ptr<Communicator> mpi_world(MpiCollectives) {
  throw Error("this build has no MPI");
}

}  // namespace molen::comm
