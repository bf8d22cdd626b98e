// Checks, before any rank allocates its arena, that the memory that the ranks are about to take is available.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "plan/memory_need.h"
#include "plan/resolve.h"

namespace molen::launch {

// Returns the memory available to each rank of this host. The host's ranks share its memory evenly; the ranks that
// share one device (`sharing` of them) share the device's memory evenly.
plan::MemoryRoom memory_room(const plan::Machine& machine, int sharing = 1);

struct MemoryRequest {
  plan::MemoryNeed need;  // of this rank
  std::string what;       // "the step program"
  int sharing = 1;        // ranks whose arenas lie on one device
  // Returns a text for the end of the refusal, which suggests what to do instead. Only one rank calls it.
  std::function<std::string(const plan::MemoryRoom&)> instead;
};

// Throws UsageError on every rank when some rank needs more memory than it has room for. Ranks may need different
// amounts (pipeline stages do): when all ranks share a host, the sum of their needs must be available. Collective.
void require_memory(const MemoryRequest& request, const plan::Machine& machine, comm::Communicator& world);

}  // namespace molen::launch
