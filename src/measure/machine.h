// Describes the machine of a run for environment.json and `molen doctor`: host, processor, libraries, build.
#pragma once

#include "base/json.h"

namespace molen::measure {

Json describe_machine();

}  // namespace molen::measure
