// The memory plan: gives every buffer and every op's scratch a fixed place in one arena, by an offline packing of their
// lifetimes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/ir/program.h"
#include "program/ir/slots.h"

namespace molen::program {

// Whether a buffer shares device memory with others: it is transient and on the device.
bool packed(const Buffer& buffer);

// How buffers and scratch share an arena.
enum class Packing {
  kShared,  // two items may use the same bytes one after the other when the program's order allows it
  kApart,   // no two items share bytes, so that a test can tell which item uses a byte
  kPages,   // as kApart, but each item has pages of its own, so that a test may protect pages
};

struct MemoryPlan {
  static constexpr std::int64_t kPage = 4096;
  std::int64_t alignment = 64;  // bytes, of every buffer and scratch
  std::int64_t aligned(std::int64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
  std::vector<std::int64_t> buffer_offset;  // by buffer: bytes from the start of its place's arena to its first slot
  std::vector<std::vector<std::int64_t>> scratch_offset;  // by body and op; -1 when the op has none
  std::vector<std::vector<std::int64_t>> high_water;  // by body and op: end of the highest byte in use while it runs
  // The ops of a body during which a transient buffer may be in use: for each stream the first and the last such op, or
  // -1 when the body does not use the buffer. An op of another stream is not among them when it is ordered before the
  // first writer or after the last reader.
  struct Live {
    std::array<int, kNumStreams> first, last;
    bool during(Stream stream, int op) const {
      const auto s = static_cast<std::size_t>(stream);
      return first[s] >= 0 && first[s] <= op && op <= last[s];
    }
  };
  std::vector<std::vector<Live>> live;  // by body and buffer
  // The ends of the three parts of the arena. `persistent` ends the persistent and constant buffers, `kept` ends the
  // slots of micro-batches, and `peak` ends the space that instances use in turn.
  Bytes persistent, kept, peak;
  // Bytes of the buffers on the host, which lie side by side. On a CPU device, host and device are the same memory.
  Bytes host;

  // Returns where the value of a micro-batch begins in this buffer, in bytes from the arena's start. `micro_batch` is
  // -1 for a value that belongs to no micro-batch.
  std::int64_t offset(const Program& program, const Slots& slots, int buffer, std::int64_t micro_batch) const;
};

// Returns the plan of a program; the result is deterministic. Within a body, two buffers share bytes only when `after`
// and the order within streams prove that one is dead before the other is written. Between instances,
// pass::order_streams ensures this.
MemoryPlan plan_memory(const Program& program, Packing packing = Packing::kShared);

// planned_peak returns only `peak` and `host` of the plan, and is faster than plan_memory. peak_of returns the device
// peak of the stage that needs the most.
struct PlannedPeak {
  Bytes device, host;
};
PlannedPeak planned_peak(const Program& program);
// Returns whether the device peak is at most `most`. A larger one is found sooner than planned_peak returns it.
bool fits(const Program& program, Bytes most);
Bytes peak_of(const std::vector<Program>& stages);

// Bytes by kind of buffer, for people to read. The kinds on the device are parameters, gradients, optimizer states, and
// activations (the peak of transients, with the slots of micro-batches). On the host there is one number for all
// buffers.
struct MemorySummary {
  Bytes parameters, gradients, optimizer, transient, peak, host;
};
MemorySummary summarize(const Program& program, const MemoryPlan& plan);

}  // namespace molen::program
