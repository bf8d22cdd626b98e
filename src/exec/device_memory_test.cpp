// Tests the copies and sums of thread-ranks in a device's memory, computed by ATen. The tests use the host's memory,
// where the bits must equal those of comm::combine.
#include "exec/device_memory.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "comm/reduce.h"
#include "exec/arena.h"

namespace molen::exec {
namespace {

constexpr std::int64_t kCount = 5003;

TEST(DeviceMemory, HoldsWhatLiesInArenasOfItsDevice) {
  const Arena arena(Bytes(1000), at::kCPU);
  const DeviceMemory host(at::kCPU), device(at::Device(at::kCUDA, 0));
  EXPECT_TRUE(host.holds(arena.at(0)));
  EXPECT_TRUE(host.holds(arena.at(999)));
  EXPECT_FALSE(host.holds(arena.at(1000)));
  EXPECT_FALSE(host.holds(static_cast<char*>(arena.at(0)) - 1));
  EXPECT_FALSE(device.holds(arena.at(0)));
  int local = 0;
  EXPECT_FALSE(host.holds(&local));
  const void* gone = nullptr;
  {
    const Arena short_lived(Bytes(1000), at::kCPU);
    gone = short_lived.at(0);
    EXPECT_TRUE(host.holds(gone));
  }
  EXPECT_FALSE(host.holds(gone));
}

TEST(DeviceMemory, CombinesToTheSameBits) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8})
    for (const comm::Reduce op : {comm::Reduce::kSum, comm::Reduce::kMax, comm::Reduce::kMin})
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(type), static_cast<int>(op), in_place));
        const std::int64_t bytes = kCount * size_of(type);
        const Arena arena(Bytes(5 * bytes), at::kCPU);
        std::vector<const void*> sources;
        for (int r = 0; r < 4; ++r) {
          at::Tensor t = arena.view(r * bytes, type, {kCount});
          const at::Tensor drawn = at::empty({kCount}, at::kDouble);
          for (std::int64_t i = 0; i < kCount; ++i)
            drawn.data_ptr<double>()[i] = (type == DType::kU8 ? 0.0 : -20.0) +
                                          40.0 * uniform_at(stream_key(3, "device") + static_cast<std::uint64_t>(r),
                                                            static_cast<std::uint64_t>(i));
          t.copy_(drawn);
          if (at::isFloatingType(t.scalar_type()) && r == 2) t.narrow(0, 17, 3).fill_(NAN);
          sources.push_back(arena.at(r * bytes));
        }
        std::vector<char> want(static_cast<std::size_t>(bytes));
        comm::combine(want.data(), sources, kCount, type, op);
        void* out = arena.at((in_place ? 1 : 4) * bytes);
        DeviceMemory memory(at::kCPU);
        memory.combine(out, sources, kCount, type, op);
        memory.wait();
        const at::Tensor got = at::from_blob(out, {kCount}, to_aten(type)).to(at::kDouble),
                         wanted = at::from_blob(want.data(), {kCount}, to_aten(type)).to(at::kDouble);
        EXPECT_TRUE(at::equal(got.nan_to_num(-1), wanted.nan_to_num(-1)));
        EXPECT_TRUE(at::equal(got.isnan(), wanted.isnan()));
      }
}

TEST(DeviceMemory, CopiesBetweenItselfAndTheHost) {
  const Arena arena(Bytes(200), at::kCPU);
  DeviceMemory memory(at::kCPU);
  const std::vector<char> from{1, 2, 3, 4, 5};
  std::vector<char> back(5);
  memory.copy(arena.at(7), from.data(), 5);
  memory.copy(arena.at(100), arena.at(7), 5);
  memory.copy(back.data(), arena.at(100), 5);
  EXPECT_EQ(back, from);
}

}  // namespace
}  // namespace molen::exec
