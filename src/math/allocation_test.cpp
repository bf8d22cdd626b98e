// Tests where ATen's allocations on the host come from while an op runs: from the op's scratch, from the block of the
// GEMM library, or from neither, which is counted.
#include "math/allocation.h"

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "base/error.h"

namespace molen::math {
namespace {

constexpr std::int64_t kStray = AllocationGuard::kStray;

class Allocation : public ::testing::Test {
 protected:
  Allocation() : scratch(memory, sizeof memory) {
    AllocationGuard::install();
    before = AllocationGuard::unserved();
  }
  static c10::DataPtr allocate(std::size_t bytes) { return c10::GetAllocator(c10::kCPU)->allocate(bytes); }
  std::int64_t unserved() const { return AllocationGuard::unserved() - before; }
  // Returns the distance of an address from the beginning of the memory.
  std::int64_t place(const void* p) const { return static_cast<const char*>(p) - memory; }

  alignas(64) char memory[1 << 14];
  Scratch scratch;
  std::int64_t before = 0;
};

TEST_F(Allocation, IsTakenFromTheScratchAndGivenBackFromTheTop) {
  const AllocationGuard guard(&scratch);
  EXPECT_EQ(scratch.used(), kStray);
  c10::DataPtr a = allocate(100), b = allocate(200), c = allocate(64);
  EXPECT_EQ(place(a.get()), kStray);
  EXPECT_EQ(place(b.get()), kStray + 128);
  EXPECT_EQ(place(c.get()), kStray + 128 + 256);
  EXPECT_EQ(scratch.used(), kStray + 128 + 256 + 64);
  b.clear();  // the scratch stays in use, because c is above b
  EXPECT_EQ(scratch.used(), kStray + 128 + 256 + 64);
  c.clear();  // gives back b too
  EXPECT_EQ(scratch.used(), kStray + 128);
  EXPECT_EQ(place(allocate(64).get()), kStray + 128);
  a.clear();
  EXPECT_EQ(scratch.used(), kStray);
  EXPECT_EQ(unserved(), 0);
}

TEST_F(Allocation, LeavesWhatTheOpHasTakenAboveABlock) {
  const AllocationGuard guard(&scratch);
  c10::DataPtr a = allocate(100);
  const void* own = scratch.take_bytes(64);
  EXPECT_EQ(place(own), kStray + 128);
  a.clear();
  EXPECT_EQ(scratch.used(), kStray + 128 + 64) << "the op's own bytes are still in use";
  EXPECT_EQ(place(allocate(64).get()), kStray + 128 + 64);
}

TEST_F(Allocation, PlacesScalarsInBytesTakenAtOnce) {
  const AllocationGuard guard(&scratch);
  std::vector<c10::DataPtr> scalars;
  std::set<std::int64_t> places;
  for (std::int64_t i = 0; i < kStray / 64; ++i) {
    scalars.push_back(allocate(16));
    places.insert(place(scalars.back().get()));
  }
  EXPECT_EQ(static_cast<std::int64_t>(places.size()), kStray / 64);
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), kStray - 64);
  EXPECT_EQ(scratch.used(), kStray);
  EXPECT_EQ(place(allocate(16).get()), kStray) << "all places are taken";
  const std::int64_t freed = place(scalars[5].get());
  scalars[5].clear();
  c10::DataPtr again = allocate(8);
  EXPECT_EQ(place(again.get()), freed);
  EXPECT_EQ(place(allocate(8).get()), kStray) << "no other place was given back";
  again.clear();
  EXPECT_EQ(place(allocate(17).get()), kStray) << "more than a scalar";
}

TEST_F(Allocation, BeginsEachOpWithAllPlacesFree) {
  c10::DataPtr kept;
  {
    const AllocationGuard guard(&scratch);
    kept = allocate(8);
    EXPECT_EQ(place(kept.get()), 0);
  }
  kept.clear();  // the op has ended, and its scratch is no longer valid
  scratch.reset();
  c10::DataPtr late;
  {
    const AllocationGuard guard(&scratch);
    late = allocate(8);
    EXPECT_EQ(place(late.get()), 0);
  }
  scratch.reset();
  const AllocationGuard guard(&scratch);
  EXPECT_EQ(place(allocate(8).get()), 0) << "what the op before left";
}

TEST_F(Allocation, IsRefusedBeyondTheScratchAndWithoutOne) {
  {
    const AllocationGuard guard(&scratch);
    EXPECT_THROW(allocate(sizeof memory), Error);
    EXPECT_THROW(AllocationGuard second(&scratch), Error) << "guards do not nest";
  }
  const AllocationGuard none(nullptr);
  EXPECT_THROW(allocate(1), Error);
  EXPECT_NO_THROW(allocate(0)) << "nothing is asked for";
  EXPECT_EQ(unserved(), 0);
}

// Memory that was taken by address alone is given back in the same way.
TEST_F(Allocation, TellsByTheAddressWhoseMemoryIsGivenBack) {
  c10::Allocator* all = c10::GetAllocator(c10::kCPU);
  void* outside = all->raw_allocate(256);
  EXPECT_EQ(unserved(), 256);
  const AllocationGuard guard(&scratch);
  void* inside = all->raw_allocate(256);
  EXPECT_EQ(place(inside), kStray);
  all->raw_deallocate(outside);
  EXPECT_EQ(scratch.used(), kStray + 256);
  all->raw_deallocate(inside);
  EXPECT_EQ(scratch.used(), kStray);
}

TEST_F(Allocation, WithoutAGuardIsNotServed) {
  c10::DataPtr a = allocate(1000);
  EXPECT_EQ(unserved(), 1000);
  const LibraryCall call;
  std::thread([&] {
    const LibraryCall mine;
    c10::DataPtr b = allocate(500);
    EXPECT_EQ(LibraryCall::kept(), 0) << "only a planned op's library has a block";
    EXPECT_EQ(unserved(), 1500);
  }).join();
}

TEST_F(Allocation, OfTheLibraryComesFromOneBlockOfTheThread) {
  std::thread([&] {
    const AllocationGuard guard(&scratch);
    const void* block = nullptr;
    {
      EXPECT_FALSE(LibraryCall::active());
      const LibraryCall call;
      EXPECT_TRUE(LibraryCall::active());
      c10::DataPtr nothing = allocate(0);
      c10::DataPtr a = allocate(100);
      EXPECT_EQ(LibraryCall::kept(), 128);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.get()) % 64, 0U);
      EXPECT_EQ(unserved(), 0);
      c10::DataPtr second = allocate(50);  // the block is in use
      EXPECT_EQ(unserved(), 50);
      EXPECT_FALSE(scratch.owns(second.get()));
      a.clear();
      c10::DataPtr larger = allocate(1000);
      EXPECT_EQ(LibraryCall::kept(), 1024);
      block = larger.get();
      larger.clear();
      c10::DataPtr smaller = allocate(10);
      EXPECT_EQ(smaller.get(), block);
      EXPECT_EQ(LibraryCall::kept(), 1024);
      EXPECT_EQ(unserved(), 50);
    }
    EXPECT_FALSE(LibraryCall::active());
    EXPECT_EQ(scratch.used(), kStray) << "the library takes nothing of the plan";
    EXPECT_EQ(place(allocate(64).get()), kStray);
  }).join();
}

}  // namespace
}  // namespace molen::math
