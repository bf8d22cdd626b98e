#pragma once

#include <string>

namespace molen {

// Returns the name of this machine, as gethostname(2) tells it; empty if it does not.
std::string host_name();

}  // namespace molen
