#include "math/allocation.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace molen::math {

thread_local int LibraryCall::depth_ = 0;

namespace {

std::int64_t aligned(std::int64_t bytes) {
  return Scratch::aligned(bytes);
}

// The blocks that this thread's guard has allocated from the op's scratch.
struct Serving {
  Scratch* scratch = nullptr;
  struct Block {
    char* data;  // null once it is given back
    std::int64_t begin, end;
  };
  std::vector<Block> blocks;  // ordered by address
  char* stray = nullptr;
  std::uint32_t strays = 0;  // one bit for each place of 64 bytes
};
thread_local Serving* serving = nullptr;

struct Free {
  void operator()(char* p) const { std::free(p); }
};
// A thread's memory for nested library calls: one block, and separate allocations for what does not fit into it.
struct Kept {
  std::unique_ptr<char, Free> block;
  std::int64_t size = 0;
  bool busy = false;
};
thread_local Kept kept;

std::atomic<std::int64_t> unserved_bytes{0};

char* allocate_aligned(std::int64_t bytes) {
  auto* p = static_cast<char*>(std::aligned_alloc(64, static_cast<std::size_t>(aligned(bytes))));
  if (!p) throw Error("a library asks for {} bytes of workspace, which this machine does not give", bytes);
  return p;
}

class ServingAllocator final : public c10::Allocator {
 public:
  explicit ServingAllocator(c10::Allocator* fallback) : fallback_(fallback) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto size = static_cast<std::int64_t>(bytes);
    if (bytes > 0 && serving && LibraryCall::active() && !kept.busy) return serve_library(size);
    if (bytes == 0 || !serving || LibraryCall::active()) {
      unserved_bytes.fetch_add(size, std::memory_order_relaxed);
      return fallback_->allocate(bytes);
    }
    MOLEN_CHECK(serving->scratch, "ATen asks for {} bytes where the op has no scratch for it", bytes);
    char* data = size <= kScalar ? serve_scalar() : nullptr;
    if (!data) {
      const std::int64_t begin = serving->scratch->used();
      data = static_cast<char*>(serving->scratch->take_bytes(size));
      serving->blocks.push_back({data, begin, serving->scratch->used()});
    }
    // raw_allocate requires the context to equal the data pointer, so the deleter itself must tell the kinds of memory
    // apart.
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_any; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

  static ServingAllocator* instance;

 private:
  static constexpr std::int64_t kScalar = 16, kPlace = 64;

  static c10::DataPtr serve_library(std::int64_t size) {
    if (size > kept.size) {
      kept.block.reset();
      kept.block.reset(allocate_aligned(size));
      kept.size = aligned(size);
    }
    kept.busy = true;
    return {kept.block.get(), kept.block.get(), &release_any, c10::Device(c10::DeviceType::CPU)};
  }

  static char* serve_scalar() {
    for (int i = 0; i < AllocationGuard::kStray / kPlace; ++i)
      if (!(serving->strays >> i & 1U)) {
        serving->strays |= 1U << i;
        return serving->stray + i * kPlace;
      }
    return nullptr;
  }

  static void release(void* data) {
    if (!serving) return;  // the op has ended, and its scratch is no longer valid
    const char* p = static_cast<char*>(data);
    if (serving->stray && p >= serving->stray && p < serving->stray + AllocationGuard::kStray) {
      serving->strays &= ~(1U << ((p - serving->stray) / kPlace));
      return;
    }
    auto& blocks = serving->blocks;
    for (auto& block : blocks)
      if (block.data == p) block.data = nullptr;
    // The op's own temporaries may lie above the block.
    while (!blocks.empty() && !blocks.back().data) {
      if (blocks.back().end == serving->scratch->used()) serving->scratch->rewind(blocks.back().begin);
      blocks.pop_back();
    }
  }

  static void release_any(void* data) {
    if (data && data == kept.block.get() && kept.busy) {
      kept.busy = false;
      return;
    }
    if (serving && serving->scratch && serving->scratch->owns(data)) return release(data);
    if (auto* deleter = instance->fallback_->raw_deleter()) deleter(data);
  }

  c10::Allocator* fallback_;
};

ServingAllocator* ServingAllocator::instance = nullptr;

}  // namespace

std::int64_t LibraryCall::kept() {
  return math::kept.size;
}

void AllocationGuard::install() {
  static std::once_flag once;
  std::call_once(once, [] {
    static ServingAllocator allocator(c10::GetAllocator(c10::kCPU));
    ServingAllocator::instance = &allocator;
    c10::SetAllocator(c10::kCPU, &allocator, /*priority=*/200);
  });
}

AllocationGuard::AllocationGuard(Scratch* scratch) {
  MOLEN_CHECK(!serving, "allocation guards do not nest");
  thread_local Serving state;
  state.scratch = scratch;
  state.blocks.clear();
  state.strays = 0;
  state.stray = scratch ? static_cast<char*>(scratch->take_bytes(kStray)) : nullptr;
  serving = &state;
}
AllocationGuard::~AllocationGuard() {
  serving = nullptr;
}
std::int64_t AllocationGuard::unserved() {
  return unserved_bytes.load(std::memory_order_relaxed);
}

}  // namespace molen::math
