// The part of resolve_setting that lays the ranks of a job out: axes, their sizes and order, stages, what is sharded.
#pragma once

#include "config/config.h"
#include "plan/resolve.h"

namespace molen::plan {

// Throws UsageError, with what would fit, where the ranks, their nodes or the model do not divide.
void resolve_parallel(const config::Config& config, const arch::Architecture& arch, const Machine& machine,
                      program::Setting& setting);

}  // namespace molen::plan
