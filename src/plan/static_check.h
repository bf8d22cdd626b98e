// What a layout's programs come to without running them: whether they are sound, their ops and their memory.
#pragma once

#include <string>
#include <vector>

#include "arch/architecture.h"
#include "program/program.h"

namespace molen::plan {

struct StaticCheck {
  std::vector<std::string> findings;  // empty: sound
  Bytes peak;                         // of the stage that needs most
  std::int64_t ops = 0;               // of the stage that has most
  std::int64_t micro_batches = 0;     // with so many the programs were built and verified
};

// Builds the programs of all stages, verifies each and all together, and plans their memory.
//
// A program of many micro-batches repeats the bodies of fewer: it is built and verified with as many as it takes until
// each further one only repeats them (`repeating_micro_batches`), and its ops and slots are counted for all.
StaticCheck check_statically(const arch::Architecture& arch, const program::Setting& setting);

// From so many micro-batches on each further one (of a schedule in groups: each group of one for each stage) adds the
// same instances, in the same order. That of the setting where it has no more, or its schedule has no such number.
std::int64_t repeating_micro_batches(const program::Setting& setting);

}  // namespace molen::plan
