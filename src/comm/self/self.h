// A communicator of a single rank.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace molen::comm {

std::unique_ptr<Communicator> make_self();

}  // namespace molen::comm
