// The environment of a run: host, processor, build, libraries. For environment.json and `molen doctor`.
#pragma once

#include "base/json.h"
#include "train/trainer.h"

namespace molen::train {

Json describe_environment(const Job& job);
Json describe_machine();

}  // namespace molen::train
