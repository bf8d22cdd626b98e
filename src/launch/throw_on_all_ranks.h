// Raises on all ranks an error that only one rank may meet (with a file of its host, or a directory that only rank 0
// writes).
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace molen::launch {

// Returns `root`'s text on every rank. Collective.
std::string broadcast_text(std::string text, comm::Communicator& world, int root = 0);

// Runs `local` on every rank. `local` may communicate over a group of ranks only if no rank of the group can wait for
// one that threw. When `local` throws UsageError, DamagedError, VersionError or IoError on some rank, every rank throws
// the same error with the text of the lowest such rank; the text names that rank when others did not fail. Collective.
// Other errors propagate: they end the job.
void throw_on_all_ranks(comm::Communicator& world, const std::function<void()>& local);

}  // namespace molen::launch
