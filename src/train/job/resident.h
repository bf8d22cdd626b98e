// The memory that a rank's process holds before it allocates any arena.
#pragma once

#include "base/units.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace molen::train {

struct Resident {
  Bytes total, workspace;  // of the process; the workspace of the GEMM library is part of the total
};
// Returns the largest figures of all ranks. Runs a GEMM of each kind first, so that the memory that the library keeps
// for itself is allocated. Collective: ranks that are threads share the process, so while its memory is read no rank
// may be ahead or still hold the operands of its GEMMs.
Resident resident_before_arena(const Job& job, comm::Communicator& world);

}  // namespace molen::train
