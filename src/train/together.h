// What one rank alone may find wrong (a file of its host, a directory that only rank 0 writes) said by all ranks.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace molen::train {

// `root`'s text on every rank. Collective.
std::string broadcast_text(std::string text, comm::Communicator& world, int root = 0);

// Runs `local` on every rank, which must not talk to the others. Where it throws UsageError, DamagedError, VersionError
// or IoError on some rank, every rank throws the same with the text of the lowest such rank, which is named where
// others did not meet it. Collective. Other errors pass: they end the job.
void together(comm::Communicator& world, const std::function<void()>& local);

}  // namespace molen::train
