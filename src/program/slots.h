// Which micro-batches share memory: a buffer of Lifetime::kMicroBatch holds a value of each of several micro-batches,
// in as many slots as there are values at one time.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace molen::program {

class Slots {
 public:
  // By the order of the schedule: a slot passes from one micro-batch to another once no later instance uses it for the
  // first. As few as possible (interval graph colouring, first come first served), and those free longest come first.
  explicit Slots(const Program& program);

  // 1 for buffers of other lifetimes.
  int count(int buffer) const { return counts_[static_cast<std::size_t>(buffer)]; }
  // 0 for buffers of other lifetimes, and for a micro-batch that has none.
  int of(int buffer, std::int64_t micro_batch) const {
    const auto& slots = slots_[static_cast<std::size_t>(buffer)];
    return micro_batch >= 0 && static_cast<std::size_t>(micro_batch) < slots.size()
               ? slots[static_cast<std::size_t>(micro_batch)]
               : 0;
  }
  // Numbers all slots of all buffers: for what is to be known of each.
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
