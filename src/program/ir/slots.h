// Slots: memory that micro-batches share. A buffer of Lifetime::kMicroBatch holds the values of several micro-batches.
// It has as many slots as there are values alive at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

class Slots {
 public:
  // Assigns slots in the order of the schedule. A slot passes to another micro-batch when no later instance uses the
  // slot for its present one. The number of slots is minimal (interval graph colouring, first come first served). The
  // slot that has been free for longest is reused first.
  explicit Slots(const Program& program);

  // Returns 1 for buffers of other lifetimes.
  int count(int buffer) const { return counts_[static_cast<std::size_t>(buffer)]; }
  // Returns 0 for buffers of other lifetimes, and for a micro-batch without a slot.
  int of(int buffer, std::int64_t micro_batch) const {
    const auto& slots = slots_[static_cast<std::size_t>(buffer)];
    return micro_batch >= 0 && static_cast<std::size_t>(micro_batch) < slots.size()
               ? slots[static_cast<std::size_t>(micro_batch)]
               : 0;
  }
  // Returns the number of a slot among all slots of all buffers, as an index for data about each slot.
  std::size_t place(int buffer, std::int64_t micro_batch) const {
    return first_[static_cast<std::size_t>(buffer)] + static_cast<std::size_t>(of(buffer, micro_batch));
  }
  std::size_t places() const { return places_; }

 private:
  std::vector<int> counts_;
  std::vector<std::vector<int>> slots_;
  std::vector<std::size_t> first_;
  std::size_t places_ = 0;
};

}  // namespace molen::program
