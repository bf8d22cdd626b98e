// The memory plan: puts every buffer and every op's scratch at a fixed place in one arena, by an offline packing of
// their lifetimes.
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
  kShared,  // two items use the same bytes in turn when the program's order allows it
  kApart,   // no two items share bytes, so that a test sees the bytes that each uses
  kPages,   // as kApart, each item on pages of its own, so that a test may protect pages
};

struct MemoryPlan {
  static constexpr std::int64_t kPage = 4096;
  std::int64_t alignment = 64;  // of every buffer and scratch, bytes
  std::int64_t aligned(std::int64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
  std::vector<std::int64_t> buffer_offset;  // bytes from the start of its place's arena, per buffer; of its first slot
  std::vector<std::vector<std::int64_t>> scratch_offset;  // per body and op; -1 when the op has none
  std::vector<std::vector<std::int64_t>> high_water;  // per body and op: end of the highest byte in use while it runs
  // The ops of a body during which a transient buffer may be in use: per stream, the first and the last such op; -1
  // when the body does not use the buffer. An op of another stream that is ordered before the first writer or after the
  // last reader is not among them.
  struct Live {
    std::array<int, kNumStreams> first, last;
    bool during(Stream stream, int op) const {
      const auto s = static_cast<std::size_t>(stream);
      return first[s] >= 0 && first[s] <= op && op <= last[s];
    }
  };
  std::vector<std::vector<Live>> live;  // per body and buffer
  // Ends of the three parts of the arena: persistent and constant buffers; up to `kept`, the slots of micro-batches; up
  // to `peak`, the space that instances use in turn.
  Bytes persistent, kept, peak;
  // Bytes of the buffers on the host, side by side. On a CPU device, host and device are the same memory.
  Bytes host;

  // Returns where the value of a micro-batch (-1: of none) in this buffer begins, in bytes from the arena's start.
  std::int64_t offset(const Program& program, const Slots& slots, int buffer, std::int64_t micro_batch) const;
};

// Deterministic. Within a body, two buffers share bytes only when `after` and the order within streams prove that one
// is dead before the other is written; between instances, pass::order_streams ensures this.
MemoryPlan plan_memory(const Program& program, Packing packing = Packing::kShared);

// planned_peak returns only the plan's peak and `host`, faster than plan_memory. peak_of returns the device peak of the
// stage that needs the most.
struct PlannedPeak {
  Bytes device, host;
};
PlannedPeak planned_peak(const Program& program);
Bytes peak_of(const std::vector<Program>& stages);

// Bytes on the device by kind of buffer, for people: parameters, gradients, optimizer states, activations (the peak of
// transients, with the slots of micro-batches); and all bytes on the host.
struct MemorySummary {
  Bytes parameters, gradients, optimizer, transient, peak, host;
};
MemorySummary summarize(const Program& program, const MemoryPlan& plan);

}  // namespace molen::program
