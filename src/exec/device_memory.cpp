#include "exec/device_memory.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "exec/arena.h"

namespace molen::exec {
namespace {

at::Tensor view(const void* data, std::int64_t count, at::ScalarType type, at::Device device) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions().dtype(type).device(device));
}

}  // namespace

bool DeviceMemory::holds(const void* data) const {
  return Arena::device_of(data) == device_;
}

at::Device DeviceMemory::device_of(const void* data) const {
  return holds(data) ? device_ : at::Device(at::kCPU);
}

void DeviceMemory::copy(void* to, const void* from, std::int64_t bytes) {
  const c10::InferenceMode inference;
  at::Tensor target = view(to, bytes, at::kByte, device_of(to));
  target.copy_(view(from, bytes, at::kByte, device_of(from)));
}

void DeviceMemory::combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype,
                           comm::Reduce op) {
  const c10::InferenceMode inference;
  const at::ScalarType type = to_aten(dtype), wide = size_of(dtype) == 2 ? at::kFloat : type;
  // `out` may be one of the sources, so the sum is formed in a copy.
  at::Tensor sum = view(sources[0], count, type, device_).to(wide, false, /*copy=*/true);
  for (const void* source : sources.subspan(1)) {
    const at::Tensor next = view(source, count, type, device_).to(wide);
    switch (op) {
      case comm::Reduce::kSum:
        sum.add_(next);
        break;
      case comm::Reduce::kMax:
        at::maximum_out(sum, sum, next);
        break;
      case comm::Reduce::kMin:
        at::minimum_out(sum, sum, next);
        break;
    }
  }
  view(out, count, type, device_).copy_(sum);
}

void DeviceMemory::wait() {
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeStream(guard.getStream(device_));
}

}  // namespace molen::exec
