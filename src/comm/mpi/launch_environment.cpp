#include <cstdlib>
#include <string>

#include "comm/mpi/mpi.h"

namespace molen::comm {
namespace {

int integer(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoi(text) : fallback;
}
bool set(const char* name) {
  return std::getenv(name) != nullptr;
}

}  // namespace

LaunchEnvironment launch_environment() {
  if (set("OMPI_COMM_WORLD_SIZE"))
    return {integer("OMPI_COMM_WORLD_RANK", 0), integer("OMPI_COMM_WORLD_SIZE", 1),
            integer("OMPI_COMM_WORLD_LOCAL_RANK", 0), integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1), "Open MPI"};
  if (set("PMI_SIZE"))
    return {integer("PMI_RANK", 0), integer("PMI_SIZE", 1), integer("PMI_LOCAL_RANK", 0), integer("PMI_LOCAL_SIZE", 1),
            "PMI"};
  // The batch script itself sees SLURM_NTASKS but is no step: only a step has ranks.
  if (set("SLURM_STEP_ID") && set("SLURM_PROCID") && set("SLURM_NTASKS"))
    return {integer("SLURM_PROCID", 0), integer("SLURM_NTASKS", 1), integer("SLURM_LOCALID", 0),
            integer("SLURM_NTASKS_PER_NODE", 1), "Slurm"};
  return {};
}

}  // namespace molen::comm
