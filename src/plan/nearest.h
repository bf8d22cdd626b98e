// Which layouts to try instead of one that does not fit.
#pragma once

#include <string>
#include <vector>

#include "plan/layouts.h"

namespace molen::plan {

struct Fitting {
  Layout layout;
  Bytes peak;  // of the rank that needs most
};

// Layouts of as many ranks as `setting` has, on nodes of `local_ranks` of them, whose memory plan is within `memory` on
// every rank: those first that differ from it in the fewest choices, then those that need least, at most `count`. Looks
// at the `tries` that differ least.
std::vector<Fitting> nearest_that_fit(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                                      Bytes memory, std::size_t count = 3, std::size_t tries = 400);

// "; nearest layouts that fit: ZERO1, recompute (1.2 GiB), ..." or "; no layout of 4 ranks ...".
std::string nearest_text(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         Bytes memory);

}  // namespace molen::plan
