// Errors that one rank alone may meet (a file of its host, a directory that only rank 0 writes), raised on all ranks.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace molen::launch {

// Returns `root`'s text on every rank. Collective.
std::string broadcast_text(std::string text, comm::Communicator& world, int root = 0);

// Runs `local` on every rank. It may communicate over groups of the ranks only such that no rank of a group waits for
// one that threw. When `local` throws UsageError, DamagedError, VersionError or IoError on some rank, every rank throws
// the same error with the text of the lowest such rank; the text names that rank when others did not fail. Collective.
// Other errors propagate: they end the job.
void together(comm::Communicator& world, const std::function<void()>& local);

}  // namespace molen::launch
