// The memory that a layout needs, computed without running it, and the memory that is available.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "arch/architecture.h"
#include "program/ir/program.h"
#include "program/memory/memory.h"
#include "program/schedule/schedule.h"

namespace molen::plan {

// The memory of one rank: arenas on the device, and buffers on the host beside them.
struct MemoryNeed {
  Bytes device, host;
  Bytes total() const { return device + host; }
};

// A part of each message that refuses a job for want of memory (launch/require_memory.h). A program that started the
// job knows by it why the job ended.
inline constexpr std::string_view kTooLittleMemory = "memory where a rank has";

// The memory available to a rank. On a CPU the device's memory is the host's.
struct MemoryRoom {
  Bytes host;
  std::optional<Bytes> device = std::nullopt;
  bool holds(const MemoryNeed& need) const {
    return device ? need.device <= *device && need.host <= host : need.total() <= host;
  }
};

// Returns the need of one rank of each stage, from the memory plans of the stages' programs. `file` is the pipeline's
// schedule when the schedule comes from a file.
std::vector<MemoryNeed> memory_needs(const arch::Architecture& arch, const program::Setting& setting,
                                     const program::Schedule* file = nullptr);

// Returns the need of a rank that trains with one plan and evaluates with another. An evaluation has an arena of its
// own (exec::Executor) only if it does not fit into the transient memory of the training.
MemoryNeed with_evaluation(const program::MemoryPlan& training, const program::MemoryPlan& evaluation);

// Returns what a rank keeps from step to step (parameters, gradients, optimizer states), on the stage that keeps the
// most. The result is a lower bound of the need, and is computed without building a program.
MemoryNeed kept_need(const arch::Architecture& arch, const program::Setting& setting);

// Returns the largest need of any stage if every stage fits into `room`. Returns nothing as soon as one stage does not
// fit.
std::optional<MemoryNeed> need_within(const arch::Architecture& arch, const program::Setting& setting,
                                      const MemoryRoom& room);

}  // namespace molen::plan
