// That the memory is there which ranks are about to take: asked before the first of their arenas is.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "plan/memory_need.h"
#include "plan/resolve.h"

namespace molen::train {

// What there is for each rank of this host. The host's ranks share its memory evenly, and those of them that have one
// device between them (`sharing`) the device's.
plan::MemoryRoom memory_room(const plan::Machine& machine, int sharing = 1);

struct MemoryRequest {
  plan::MemoryNeed need;  // of this rank
  std::string what;       // "the step program"
  int sharing = 1;        // ranks whose arenas lie on one device
  // What to do instead, behind the refusal: asked of one rank alone.
  std::function<std::string(const plan::MemoryRoom&)> instead;
};

// Throws UsageError on every rank where some rank's need is more than its room. Ranks may need differently much (stages
// do): where all share a host, what they need together must be there. Collective.
void require_memory(const MemoryRequest& request, const plan::Machine& machine, comm::Communicator& world);

}  // namespace molen::train
