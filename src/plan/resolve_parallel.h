// The part of resolve_setting that arranges the ranks of a job: axes, their sizes and order, stages, sharding.
#pragma once

#include "config/config.h"
#include "plan/resolve.h"

namespace molen::plan {

// Throws UsageError, which says what would fit, when the ranks, their nodes or the model do not divide.
void resolve_parallel(const config::Config& config, const arch::Architecture& arch, const Machine& machine,
                      program::Setting& setting);

}  // namespace molen::plan
