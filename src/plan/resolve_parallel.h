// The part of resolve_setting that arranges the ranks of a job: axes, their sizes and order, stages, sharding.
#pragma once

#include "config/config.h"
#include "plan/resolve.h"

namespace molen::plan {

// Returns the ZeRO stage that parallel.zero or parallel.sharding asks for.
int zero_stage(const config::Config& config);

// Throws UsageError when the ranks, their nodes or the model do not divide; the message gives values that fit.
void resolve_parallel(const config::Config& config, const arch::Architecture& arch, const Machine& machine,
                      program::Setting& setting);

}  // namespace molen::plan
