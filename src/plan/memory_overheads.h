// The memory of a device that a process takes beside its plan.
#pragma once

#include <string>

#include "base/units.h"
#include "cluster/cluster.h"
#include "program/ir/program.h"

namespace molen::plan {

// The bytes are assumptions: the factors `context_memory` and `communicator_memory` (sim/factors.h).
struct MemoryOverheads {
  Bytes context;          // the driver's context, and the workspaces of libraries
  int communicators = 0;  // the communicators of several ranks that a rank opens
  Bytes of_communicator;  // buffers of one of them
  Bytes total() const { return context + communicators * of_communicator; }
  // Returns the bytes of a device that are left for a plan; 0 where none are.
  Bytes left_of(Bytes device) const;
  std::string text() const;  // "the driver's context (1.00 GiB) and 2 communicators (358.40 MiB each)"
};

Bytes memory_of_device(const cluster::Device& device);

MemoryOverheads memory_overheads(int communicators);
// The overheads of a rank that runs a program: it has a communicator of the world, and those that the executor opens.
MemoryOverheads memory_overheads(const program::Program& p);

}  // namespace molen::plan
