// Texts of different lengths from all ranks.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace molen::launch {

// Returns every rank's text on every rank. Collective.
std::vector<std::string> gather_texts(comm::Communicator& world, const std::string& own);

// Returns every rank's text on rank 0, and nothing on the others. Collective.
std::vector<std::string> texts_at_root(comm::Communicator& world, const std::string& own);

}  // namespace molen::launch
