// The part of a schedule that each further micro-batch repeats, and schedules with less of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Blocks of instances that lie one behind the other in a schedule. Each block has the bodies of the block before it,
// for micro-batches that are `micro_batches` later. A block begins with the earliest micro-batch that it has.
struct Repeats {
  std::size_t first = 0;   // index of the first block's first instance
  std::size_t length = 0;  // instances of a block
  std::size_t blocks = 0;
  std::int64_t micro_batches = 1;  // of a block
  std::int64_t earliest = 0;       // micro-batch of the first block's first instance
  std::size_t end() const { return first + blocks * length; }
};

// Returns the blocks of `micro_batches` around the middle of a schedule. Returns nothing where less than two blocks
// follow each other there, or where a schedule with fewer of them would not be one of fewer micro-batches (GPipe runs
// all forwards first, so its forwards and backwards repeat apart from each other).
std::optional<Repeats> repeats_in(const std::vector<Instance>& schedule, std::int64_t micro_batches);

// Returns the schedule with only the first `kept` blocks. Later instances have micro-batches that are earlier by those
// of the blocks that are left out.
std::vector<Instance> with_blocks(const std::vector<Instance>& schedule, const Repeats& repeats, std::size_t kept);

// Returns how many micro-batches a block of this setting has: those of a group of an interleaved schedule, otherwise
// one.
std::int64_t micro_batches_of_block(const Setting& setting);

}  // namespace molen::program
