// Suggests layouts to try instead of one that does not fit.
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
  std::size_t looked = 0, all = 0;  // layouts that the search looked at; all layouts that exist
  bool ended = false;               // whether the time limit ended the search
  // Set when no layout fits: the layout that keeps the least from step to step, among those looked at. Among equals, it
  // is one with full recompute and the shortest micro-batch.
  std::optional<Layout> least;
};

// The limits that end a search, whatever it has found.
struct SearchLimits {
  std::size_t count = 3;  // most layouts to return
  Seconds time{1.5};      // CPU time of the search
};

// Returns layouts that fit into `room` on every rank, with as many ranks as `setting`, on nodes of `local_ranks` ranks.
// Layouts that differ from `setting` in the fewest choices come first; among equals, those that need the least memory
// come first. On a device (MemoryRoom::device), layouts that do not run there yet are left out.
Nearest nearest_that_fit(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits = {});

// Returns "; nearest layouts that fit: ZERO1, recompute in micro-batches of 2 (1.2 GiB); ..." or, when nothing fits, ";
// none of the nearest layouts of 4 ranks fits either" with the nearest layout, its largest need, and other remedies.
// Adds how many layouts were looked at when the time limit ended the search.
std::string nearest_text(const arch::Architecture& arch, const program::Setting& setting, int local_ranks,
                         const MemoryRoom& room, const SearchLimits& limits = {});

}  // namespace molen::plan
