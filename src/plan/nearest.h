// Which layouts to try instead of one that does not fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/layouts.h"
#include "plan/memory_need.h"

namespace molen::plan {

struct Fitting {
  Layout layout;
  MemoryNeed need;  // of the rank that needs most
};

struct Nearest {
  std::vector<Fitting> fitting;
  std::size_t looked = 0, all = 0;  // layouts that the search came to, of those there are
  bool ended = false;               // by its time
  // Where none fits: of those looked at the one that keeps least from step to step; of such, one with full recompute
  // and the shortest micro-batch.
  std::optional<Layout> least;
};

// Where a search ends, whatever it has found.
struct SearchLimits {
  std::size_t count = 3;  // that fit
  Seconds time{1.5};      // that it computes
};

// Layouts of as many ranks as `setting` has, on nodes of `local_ranks` of them, whose need `room` holds on every rank:
// those first that differ from it in the fewest choices, then those that need least. On a device (MemoryRoom::device)
// without those that do not run there yet.
Nearest nearest_that_fit(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits = {});

// "; nearest layouts that fit: ZERO1, recompute in micro-batches of 2 (1.2 GiB); ...", or "; none of the nearest
// layouts of 4 ranks fits either" with the one that comes nearest, what it needs most for, and what else there is; with
// how many were looked at where time ended the search.
std::string nearest_text(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits = {});

}  // namespace molen::plan
