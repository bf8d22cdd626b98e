// The memory plan: every buffer and every op's scratch at a fixed place in one arena, by an offline packing of their
// lifetimes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/slots.h"

namespace molen::program {

// Whether a buffer shares the device's memory with others: transient, and there.
bool packed(const Buffer& buffer);

// How buffers and scratch share an arena.
enum class Packing {
  kShared,  // two take turns in the same bytes where the program's order allows it
  kApart,   // nothing takes turns, so that a test sees the bytes that each uses
  kPages,   // and each begins on a page of its own, so that a test may forbid pages
};

struct MemoryPlan {
  static constexpr std::int64_t kPage = 4096;
  std::int64_t alignment = 64;  // of every buffer and scratch, bytes
  std::int64_t aligned(std::int64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
  std::vector<std::int64_t> buffer_offset;  // bytes from the start of its place's arena, per buffer; of its first slot
  std::vector<std::vector<std::int64_t>> scratch_offset;  // per body and op; -1 where the op has none
  std::vector<std::vector<std::int64_t>> high_water;  // per body and op: end of the highest byte in use while it runs
  // While which ops of a body a transient buffer may be in use: per stream, the first and the last one; -1 where it is
  // not used in the body. An op of another stream that is ordered before its first writer or after its last reader is
  // outside.
  struct Live {
    std::array<int, kNumStreams> first, last;
    bool during(Stream stream, int op) const {
      const auto s = static_cast<std::size_t>(stream);
      return first[s] >= 0 && first[s] <= op && op <= last[s];
    }
  };
  std::vector<std::vector<Live>> live;  // per body and buffer
  // The arena begins with persistent buffers; then, up to `kept`, stand the slots of micro-batches; then what instances
  // take turns in.
  Bytes persistent, kept, peak;
  // What buffers of the host take there, side by side. On a CPU device both are the machine's memory.
  Bytes host;

  // Where the buffer's value of a micro-batch stands (-1: not of one), in bytes from the arena's start.
  std::int64_t offset(const Program& program, const Slots& slots, int buffer, std::int64_t micro_batch) const;
};

// Deterministic. Two buffers share bytes only where `after` and the order within streams prove, within a body, that one
// is dead before the other is written; between instances pass::order_streams sees to it.
MemoryPlan plan_memory(const Program& program, Packing packing = Packing::kShared);

// Of the device, of the stage that needs most.
// The plan's peak and `host` alone, sooner.
struct PlannedPeak {
  Bytes device, host;
};
PlannedPeak planned_peak(const Program& program);
Bytes peak_of(const std::vector<Program>& stages);

// Bytes of the device by kind of buffer, for people: parameters, gradients, optimizer states, activations (peak of
// transients, with the slots of micro-batches); and all that the host holds.
struct MemorySummary {
  Bytes parameters, gradients, optimizer, transient, peak, host;
};
MemorySummary summarize(const Program& program, const MemoryPlan& plan);

}  // namespace molen::program
