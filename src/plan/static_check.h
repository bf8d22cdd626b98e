// Checks a layout's programs without running them: their soundness, their ops and their memory.
#pragma once

#include <string>
#include <vector>

#include "arch/architecture.h"
#include "program/ir/program.h"

namespace molen::plan {

struct StaticCheck {
  std::vector<std::string> findings;  // empty: sound
  Bytes peak;                         // planned peak of the stage that needs the most memory
  std::int64_t ops = 0;               // ops of the stage that has the most
  std::int64_t micro_batches = 0;     // micro-batches with which the programs were built and verified
};

// Builds the programs of all stages, verifies each and all together, and plans their memory.
//
// A program of many micro-batches repeats the bodies of fewer. It is therefore built and verified with
// `repeating_micro_batches`, after which each further micro-batch only repeats the earlier ones. Ops and slots are
// counted for all micro-batches.
StaticCheck check_statically(const arch::Architecture& arch, const program::Setting& setting);

// Throws UsageError with the findings of `program::check` and `program::check_world` for the programs of all stages,
// when there are any. Micro-batches that only repeat the instances of others are left out of the check. `threads`
// follow that many programs at a time.
void require_sound(std::vector<program::Program>& stages, int threads = 1);

// Returns the number of micro-batches after which each further micro-batch adds the same instances in the same order.
// In a schedule in groups, this is true of each further group of one micro-batch per stage. Returns the setting's own
// number of micro-batches if it is not larger, or if the schedule never repeats in this way.
std::int64_t repeating_micro_batches(const program::Setting& setting);

}  // namespace molen::plan
