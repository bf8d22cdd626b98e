// The optimizer's part of a configuration, as the types of src/optim.
#pragma once

#include "config/config.h"
#include "optim/schedule.h"
#include "optim/update.h"

namespace molen::train {

optim::Schedule resolve_schedule(const config::Config& config, std::int64_t total_steps, double sequences_per_epoch);
optim::Options resolve_optimizer(const config::Config& config);

}  // namespace molen::train
