#include "plan/memory_overheads.h"

#include <gtest/gtest.h>

#include "program/build/build.h"

namespace molen::plan {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Returns the communicators of several ranks that a rank opens.
int communicators_of(const mesh::PerAxis& sizes, int zero = 0, const char* preset = "llama-tiny") {
  program::Setting s;
  s.mesh = sizes, s.zero = zero;
  s.global_batch = 16, s.sequence = 64;
  return memory_overheads(program::build(arch::preset(preset), s)).communicators;
}

mesh::PerAxis ranks_along(mesh::Axis a, int ranks, mesh::Axis b = mesh::Axis::kTp, int others = 1) {
  mesh::PerAxis sizes = mesh::kOne;
  sizes[b] = others, sizes[a] = ranks;
  return sizes;
}

TEST(MemoryOverheads, ARankOpensOneForTheWorldAndOneForEachAxisOfItsOps) {
  using mesh::Axis;
  EXPECT_EQ(communicators_of(mesh::kOne), 0);
  EXPECT_EQ(communicators_of(ranks_along(Axis::kDpReplicate, 4)), 2);
  EXPECT_EQ(communicators_of(ranks_along(Axis::kTp, 2)), 2);
  EXPECT_EQ(communicators_of(ranks_along(Axis::kTp, 2, Axis::kDpReplicate, 2)), 3);
  // Messages between stages, and the sums over the first and the last one.
  EXPECT_EQ(communicators_of(ranks_along(Axis::kPp, 2)), 3);
}

TEST(MemoryOverheads, LeaveTheRestOfADevice) {
  const MemoryOverheads o{Bytes(kGiB), 2, Bytes(kGiB / 4)};
  EXPECT_EQ(o.total(), Bytes(kGiB + kGiB / 2));
  EXPECT_EQ(o.left_of(Bytes(4 * kGiB)), Bytes(4 * kGiB - o.total().value));
  EXPECT_EQ(o.left_of(Bytes(kGiB)), Bytes());
  EXPECT_EQ(o.text(), "the driver's context (1.00 GiB) and 2 communicators (256.00 MiB each)");
}

}  // namespace
}  // namespace molen::plan
