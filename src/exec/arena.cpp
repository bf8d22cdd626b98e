#include "exec/arena.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
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

Arena::Arena(Bytes size, at::Device device) : size_(size), device_(device) {
  if (size.value == 0) return;
  if (!device.is_cpu()) {
    device_block_ = at::zeros({size.value}, at::TensorOptions().dtype(at::kByte).device(device));
    base_ = device_block_.data_ptr();
    return;
  }
  base_ =
      ::mmap(nullptr, static_cast<std::size_t>(size.value), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw Error("the memory plan needs {}, which this machine does not give", human(size));
  }
  ::madvise(base_, static_cast<std::size_t>(size.value), MADV_HUGEPAGE);  // a hint; refusal costs speed only
}

Arena::~Arena() {
  if (base_ && device_.is_cpu()) ::munmap(base_, static_cast<std::size_t>(size_.value));
}

at::Tensor Arena::view(std::int64_t offset, DType dtype, at::IntArrayRef shape) const {
  std::int64_t elements = 1;
  for (const std::int64_t n : shape) elements *= n;
  MOLEN_CHECK(offset >= 0 && offset + elements * size_of(dtype) <= size_.value,
              "a view of {} bytes at {} beyond the arena of {}", elements * size_of(dtype), offset, size_.value);
  return at::from_blob(at(offset), shape, at::TensorOptions().dtype(to_aten(dtype)).device(device_));
}

namespace {

// The block that serves this thread, if any. Freed blocks are reused when they lie on top, which is how ATen's
// temporaries come and go.
struct Serving {
  char* base = nullptr;
  std::int64_t capacity = 0, used = 0, high = 0;
  std::vector<std::pair<char*, std::int64_t>> blocks;  // start and end offset, in order; a freed one has start null
};
thread_local Serving* serving = nullptr;

constexpr std::int64_t kAlign = 64;

class ServingAllocator final : public c10::Allocator {
 public:
  explicit ServingAllocator(c10::Allocator* fallback) : fallback_(fallback) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!serving || bytes == 0) return fallback_->allocate(bytes);
    const std::int64_t need = (static_cast<std::int64_t>(bytes) + kAlign - 1) / kAlign * kAlign;
    MOLEN_CHECK(serving->used + need <= serving->capacity,
                "ATen asks for {} bytes where {} of the op's {} bytes of scratch are left", bytes,
                serving->capacity - serving->used, serving->capacity);
    char* data = serving->base + serving->used;
    serving->used += need;
    serving->high = std::max(serving->high, serving->used);
    serving->blocks.emplace_back(data, serving->used);
    // raw_allocate wants the context to equal the data pointer, so the deleter tells the two kinds of memory apart
    // itself.
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_any; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

  static ServingAllocator* instance;

 private:
  static void release(void* data) {
    if (!serving) return;  // the op has ended and its scratch is gone with it
    auto& blocks = serving->blocks;
    for (auto& block : blocks)
      if (block.first == data) block.first = nullptr;
    while (!blocks.empty() && !blocks.back().first) blocks.pop_back();
    serving->used = blocks.empty() ? 0 : blocks.back().second;
  }

  static void release_any(void* data) {
    const char* p = static_cast<char*>(data);
    if (serving && p >= serving->base && p < serving->base + serving->capacity) return release(data);
    if (auto* deleter = instance->fallback_->raw_deleter()) deleter(data);
  }

  c10::Allocator* fallback_;
};

ServingAllocator* ServingAllocator::instance = nullptr;

}  // namespace

void AllocationGuard::install() {
  static std::once_flag once;
  std::call_once(once, [] {
    static ServingAllocator allocator(c10::GetAllocator(c10::kCPU));
    ServingAllocator::instance = &allocator;
    c10::SetAllocator(c10::kCPU, &allocator, /*priority=*/200);
  });
}

AllocationGuard::AllocationGuard(void* scratch, std::int64_t capacity) {
  MOLEN_CHECK(!serving, "allocation guards do not nest");
  thread_local Serving state;
  state = {static_cast<char*>(scratch), capacity, 0, 0, {}};
  serving = &state;
}
AllocationGuard::~AllocationGuard() {
  serving = nullptr;
}
std::int64_t AllocationGuard::high_water() const {
  return serving->high;
}

}  // namespace molen::exec
