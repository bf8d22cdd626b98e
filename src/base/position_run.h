// A run of neighbouring positions of a sequence. When several ranks share a sequence (arch/context_parallel.h), each
// holds some runs; its rows are the positions of these runs, one run after another.
#pragma once

#include <cstdint>
#include <span>

namespace molen {

struct PositionRun {  // [first, last)
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
  bool operator==(const PositionRun&) const = default;
};

inline std::int64_t count_positions(std::span<const PositionRun> runs) {
  std::int64_t count = 0;
  for (const PositionRun& run : runs) count += run.size();
  return count;
}

// Returns whether the runs ascend, none is empty and no two overlap, all within [0, sequence).
inline bool in_order(std::span<const PositionRun> runs, std::int64_t sequence) {
  std::int64_t last = 0;
  for (const PositionRun& run : runs) {
    if (run.first < last || run.last <= run.first || run.last > sequence) return false;
    last = run.last;
  }
  return true;
}

}  // namespace molen
