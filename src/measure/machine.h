// The machine under a run: host, processor, libraries, build. For environment.json and `molen doctor`.
#pragma once

#include "base/json.h"

namespace molen::measure {

Json describe_machine();

}  // namespace molen::measure
