// The environment of a run, for environment.json: its machine, and how the run uses it.
#pragma once

#include "base/json.h"
#include "train/trainer.h"

namespace molen::train {

Json describe_environment(const Job& job);

}  // namespace molen::train
