#include "plan/memory_overheads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/ir/layout.h"
#include "sim/factors.h"

namespace molen::plan {
namespace {

Bytes of_factor(const char* name) {
  return Bytes(std::llround(sim::Factors::shipped().of(name) * 1024.0 * 1024.0 * 1024.0));
}

}  // namespace

Bytes MemoryOverheads::left_of(Bytes device) const {
  return std::max(Bytes(), device - total());
}

std::string MemoryOverheads::text() const {
  std::string driver = fmt::format("the driver's context ({})", human(context));
  if (communicators == 0) return driver;
  const std::string each = human(of_communicator);
  if (communicators == 1) return fmt::format("{} and a communicator ({})", driver, each);
  return fmt::format("{} and {} communicators ({} each)", driver, communicators, each);
}

Bytes memory_of_device(const cluster::Device& device) {
  return Bytes(static_cast<std::int64_t>(device.memory.value));
}

MemoryOverheads memory_overheads(int communicators) {
  return {of_factor("context_memory"), communicators, of_factor("communicator_memory")};
}

MemoryOverheads memory_overheads(const program::Program& p) {
  const auto axes = program::communicator_axes(p);
  const auto several =
      std::ranges::count_if(axes, [&](program::Axis axis) { return program::group_size(p.grid, axis) > 1; });
  return memory_overheads((p.grid.ranks() > 1 ? 1 : 0) + static_cast<int>(several));
}

}  // namespace molen::plan
