// Checks a layout's programs without running them: whether they are sound, their ops and their memory.
#pragma once

#include <string>
#include <vector>

#include "arch/architecture.h"
#include "program/ir/program.h"

namespace molen::plan {

struct StaticCheck {
  std::vector<std::string> findings;  // empty: sound
  Bytes peak;                         // of the stage that needs the most
  std::int64_t ops = 0;               // of the stage that has the most
  std::int64_t micro_batches = 0;     // with which the programs were built and verified
};

// Builds the programs of all stages, verifies each and all together, and plans their memory.
//
// A program of many micro-batches repeats the bodies of fewer. It is therefore built and verified with
// `repeating_micro_batches`, after which each further micro-batch only repeats the earlier ones. Ops and slots are
// counted for all micro-batches.
StaticCheck check_statically(const arch::Architecture& arch, const program::Setting& setting);

// Returns the number of micro-batches after which each further one adds the same instances in the same order (in a
// schedule in groups: each further group of one micro-batch per stage). Returns the setting's own number if that is not
// larger, or if its schedule has no such number.
std::int64_t repeating_micro_batches(const program::Setting& setting);

}  // namespace molen::plan
