#include "exec/arena.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/error.h"

namespace molen::exec {

at::ScalarType to_aten(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return at::kDouble;
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kU8:
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    default:
      break;
  }
  throw Error("tensors of type {} are not used", name_of(dtype));
}

namespace {

// The arenas of this process, by their first address.
struct Registry {
  std::shared_mutex mutex;
  std::map<const char*, const Arena*> arenas;
};
Registry& registry() {
  static Registry r;
  return r;
}

}  // namespace

Arena::Arena(Bytes size, at::Device device, bool pinned) : size_(size), device_(device) {
  if (size.value == 0) return;
  take(pinned);
  const std::unique_lock lock(registry().mutex);
  registry().arenas.emplace(static_cast<const char*>(base_), this);
}

void Arena::take(bool pinned) {
  const Bytes size = size_;
  if (!device_.is_cpu() || pinned) {
    block_ = at::zeros({size.value}, at::TensorOptions().dtype(at::kByte).device(device_).pinned_memory(pinned));
    base_ = block_.data_ptr();
    return;
  }
  base_ =
      ::mmap(nullptr, static_cast<std::size_t>(size.value), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw Error("the memory plan needs {}, which this machine does not give", human(size));
  }
  ::madvise(base_, static_cast<std::size_t>(size.value), MADV_HUGEPAGE);  // a hint; a refusal only costs speed
}

std::optional<Bytes> Arena::touched() const {
  if (!base_ || block_.defined()) return std::nullopt;
  constexpr std::int64_t kPages = 1 << 16;  // pages of one mincore call
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> given(static_cast<std::size_t>(kPages));
  std::int64_t pages = 0;
  for (std::int64_t at = 0; at < size_.value; at += kPages * page) {
    const std::int64_t bytes = std::min(kPages * page, size_.value - at);
    if (::mincore(static_cast<char*>(base_) + at, static_cast<std::size_t>(bytes), given.data()) != 0)
      return std::nullopt;
    pages += std::count_if(given.begin(), given.begin() + (bytes + page - 1) / page,
                           [](unsigned char state) { return (state & 1) != 0; });
  }
  return Bytes(std::min(pages * page, size_.value));
}

std::optional<at::Device> Arena::device_of(const void* data) {
  const std::shared_lock lock(registry().mutex);
  const auto& arenas = registry().arenas;
  auto after = arenas.upper_bound(static_cast<const char*>(data));
  if (after == arenas.begin()) return std::nullopt;
  const auto& [base, arena] = *--after;
  if (static_cast<const char*>(data) - base >= arena->size_.value) return std::nullopt;
  return arena->device_;
}

Arena::~Arena() {
  if (base_) {
    const std::unique_lock lock(registry().mutex);
    registry().arenas.erase(static_cast<const char*>(base_));
  }
  if (base_ && !block_.defined()) ::munmap(base_, static_cast<std::size_t>(size_.value));
}

at::Tensor Arena::view(std::int64_t offset, DType dtype, at::IntArrayRef shape) const {
  std::int64_t elements = 1;
  for (const std::int64_t n : shape) elements *= n;
  MOLEN_CHECK(offset >= 0 && offset + elements * size_of(dtype) <= size_.value,
              "a view of {} bytes at {} beyond the arena of {}", elements * size_of(dtype), offset, size_.value);
  return at::from_blob(at(offset), shape, at::TensorOptions().dtype(to_aten(dtype)).device(device_));
}

}  // namespace molen::exec
