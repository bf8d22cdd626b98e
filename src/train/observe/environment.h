// The environment of a run, for environment.json: its machine, and how the run uses it.
#pragma once

#include "base/json.h"
#include "train/trainer.h"

namespace molen::train {

Json describe_environment(const Job& job);

// Returns whom the energy of this attempt is accounted to, for its first event: `host`, `user`, `group`, and Slurm's
// `slurm_job`, `slurm_step` and `slurm_account`, which are empty without Slurm.
Json describe_owner();

}  // namespace molen::train
