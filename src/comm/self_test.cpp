#include "comm/self/self.h"

#include <gtest/gtest.h>

#include "comm/comm_suite.h"
#include "comm/wire_suite.h"

namespace molen::comm {
namespace {

TEST(Self, Suite) {
  const auto self = make_self();
  EXPECT_EQ(suite::Suite(*self).run(), "");
}

TEST(Self, NothingLeaves) {
  const auto self = make_self();
  EXPECT_EQ(suite::WireSuite(*self).run(), "");
  EXPECT_EQ(self->traffic().wire_bytes, 0);
  EXPECT_EQ(self->traffic().wire_received, 0);
}

TEST(Self, AbortEndsLaterCallsOfEveryGroup) {
  const auto self = make_self();
  const auto part = self->split(0, 0);
  part->abort("enough");
  double x = 1;
  EXPECT_THROW(self->all_reduce(&x, 1, DType::kF64, Reduce::kSum), Error);
  EXPECT_THROW(self->barrier(), Error);
  EXPECT_THROW((void)part->split(0, 0), Error);
}

}  // namespace
}  // namespace molen::comm
