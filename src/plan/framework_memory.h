// The memory that a published framework needs for a layout, beside what molen's own program needs.
#pragma once

#include <vector>

#include "plan/framework.h"
#include "program/ir/program.h"

namespace molen::plan {

struct FrameworkMemory {
  double allocator = 0.0;  // bytes of the training program's own buffers, on the fullest device
  double device = 0.0;     // bytes in use as the driver shows them; at most the capacity if the run fits
  bool fits = false;       // whether a device holds what a program needs that fuses its loss
};

// Returns the memory of the stage that needs the most. It is the plan of the stage's program, plus what the framework
// keeps for backward and molen does not, plus what libraries and the driver take. `capacity`: bytes of a device.
FrameworkMemory memory_of(const FrameworkSetting& framework, const std::vector<program::Program>& stages,
                          double capacity);

}  // namespace molen::plan
