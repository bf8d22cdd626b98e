// What a layout needs of memory, without running it, and what there is of it.
#pragma once

#include <optional>
#include <vector>

#include "arch/architecture.h"
#include "program/program.h"
#include "program/schedule.h"

namespace molen::plan {

// What a rank takes: arenas of the device, and what stands on the host beside them.
struct MemoryNeed {
  Bytes device, host;
  Bytes total() const { return device + host; }
};

// What there is for a rank. On a CPU the device's memory is the host's.
struct MemoryRoom {
  Bytes host;
  std::optional<Bytes> device = std::nullopt;
  bool holds(const MemoryNeed& need) const {
    return device ? need.device <= *device && need.host <= host : need.total() <= host;
  }
};

// The need of a rank of each stage, by the memory plans of their programs. `file`: the pipeline's schedule where it is
// a file.
std::vector<MemoryNeed> memory_needs(const arch::Architecture& arch, const program::Setting& setting,
                                     const program::Schedule* file = nullptr);

// What a rank keeps from step to step (parameters, gradients, optimizer states), of the stage that keeps most; a lower
// bound of its need, without building a program.
MemoryNeed kept_need(const arch::Architecture& arch, const program::Setting& setting);

// That of the stage that needs most, where `room` holds every stage's; nothing as soon as it holds one stage's not.
std::optional<MemoryNeed> need_within(const arch::Architecture& arch, const program::Setting& setting,
                                      const MemoryRoom& room);

}  // namespace molen::plan
