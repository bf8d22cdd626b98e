// The memory plan: every buffer and every op's scratch at a fixed place in one arena, by an offline packing of their
// lifetimes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

struct MemoryPlan {
  std::vector<std::int64_t> buffer_offset;                // bytes from the arena's start, per buffer
  std::vector<std::vector<std::int64_t>> scratch_offset;  // per body and op; -1 where the op has none
  std::vector<std::vector<std::int64_t>> high_water;  // per body and op: end of the highest byte in use while it runs
  // First and last op of a body in which a transient buffer is live; -1 where it is not used there.
  struct Interval {
    int first = -1, last = -1;
    bool live(int op) const { return first >= 0 && first <= op && op <= last; }
  };
  std::vector<std::vector<Interval>> live;  // per body and buffer
  Bytes persistent, peak;
};

// 64-byte aligned. Deterministic.
MemoryPlan plan_memory(const Program& program);

// Bytes by kind of buffer, for people: parameters, gradients, optimizer states, activations (peak of transients).
struct MemorySummary {
  Bytes parameters, gradients, optimizer, transient, peak;
};
MemorySummary summarize(const Program& program, const MemoryPlan& plan);

}  // namespace molen::program
