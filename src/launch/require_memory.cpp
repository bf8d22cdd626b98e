#include "launch/require_memory.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <array>

#include "base/available_memory.h"
#include "launch/throw_on_all_ranks.h"

namespace molen::launch {
namespace {

// Returns the free bytes of this rank's device, after torch's allocator gives back what it keeps for reuse.
Bytes free_on_device(int device) {
  at::accelerator::emptyCache();
  return Bytes(static_cast<std::int64_t>(at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(device)).first));
}

// Replaces the needs of ranks that share one memory by their mean.
plan::MemoryNeed evened_out(const MemoryRequest& request, const plan::Machine& machine, comm::Communicator& world) {
  plan::MemoryNeed need = request.need;
  std::array<std::int64_t, 2> sums{need.host.value, need.device.value};
  world.all_reduce(sums.data(), 2, DType::kI64, comm::Reduce::kSum);
  if (machine.local_ranks != world.size()) return need;  // several hosts
  need.host = Bytes(sums[0] / world.size());
  if (!machine.cuda || request.sharing == world.size()) need.device = Bytes(sums[1] / world.size());
  return need;
}

std::string refusal(const MemoryRequest& request, const plan::MemoryNeed& need, const plan::MemoryRoom& room) {
  const std::string instead = request.instead ? request.instead(room) : "";
  if (room.device && need.device > *room.device)
    return fmt::format("{} needs {} of a device's {} {}{}", request.what, human(need.device), plan::kTooLittleMemory,
                       human(*room.device), instead);
  const std::string limit = available_memory().source;
  return fmt::format("{} needs {} of {}{} {}{}{}", request.what, human(room.device ? need.host : need.total()),
                     room.device ? "the host's " : "", plan::kTooLittleMemory, human(room.host),
                     limit == "/proc/meminfo" ? "" : fmt::format(" ({})", limit), instead);
}

}  // namespace

plan::MemoryRoom memory_room(const plan::Machine& machine, int sharing) {
  const Bytes host(available_memory().bytes.value / std::max(1, machine.local_ranks));
  if (!machine.cuda) return {host};
  return {host, Bytes(free_on_device(machine.device).value / std::max(1, sharing))};
}

void require_memory(const MemoryRequest& request, const plan::Machine& machine, comm::Communicator& world) {
  const plan::MemoryNeed need = evened_out(request, machine, world);
  const plan::MemoryRoom room = memory_room(machine, request.sharing);
  // Only the lowest rank that has too little memory reports it, because the search for what would fit takes a while.
  std::int32_t first = room.holds(need) ? world.size() : world.rank();
  world.all_reduce(&first, 1, DType::kI32, comm::Reduce::kMin);
  if (first == world.size()) return;
  throw_on_all_ranks(world, [&] {
    if (world.rank() == first) throw UsageError("{}", refusal(request, need, room));
  });
}

}  // namespace molen::launch
