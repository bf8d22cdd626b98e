// What a rank's process holds before any arena of its own is there.
#pragma once

#include "base/units.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace molen::train {

struct Resident {
  Bytes total, workspace;  // of the process; the products' workspace is in the total
};
// The largest of all ranks. Runs a product of each kind first, so that what the library keeps for itself is there.
// Collective: rank-threads share the process, so that none may be ahead of the reading, nor still hold its operands.
Resident resident_before_arena(const Job& job, comm::Communicator& world);

}  // namespace molen::train
