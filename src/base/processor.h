// The processor of this machine.
#pragma once

#include <string>

namespace molen {

// Returns the name of the processor as /proc/cpuinfo has it ("AMD EPYC 9B45"), or "unknown" where the kernel gives
// none.
std::string cpu_model();

}  // namespace molen
