#include "comm/self/self.h"

#include <gtest/gtest.h>

#include "base/test_golden.h"
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
  const GoldenMessages golden;
  const auto self = make_self();
  const auto part = self->split(0, 0);
  part->abort("enough");
  double x = 1;
  EXPECT_NOTED(self->all_reduce(&x, 1, DType::kF64, Reduce::kSum), Error);
  EXPECT_NOTED(self->barrier(), Error);
  EXPECT_NOTED((void)part->split(0, 0), Error);
}

// Wire traffic is unknown as soon as one part of it is unknown.
TEST(Traffic, DifferencesAndSumsKnowWhatIsUnknown) {
  const Traffic later{5, 100, 40, 30}, earlier{2, 60, 10, 20}, unknown{1, 50, std::nullopt, std::nullopt};
  EXPECT_EQ(later - earlier, (Traffic{3, 40, 30, 10}));
  EXPECT_EQ(later - unknown, (Traffic{4, 50, std::nullopt, std::nullopt}));
  EXPECT_EQ(unknown - earlier, (Traffic{-1, -10, std::nullopt, std::nullopt}));
  Traffic sum = later;
  EXPECT_EQ(sum += earlier, (Traffic{7, 160, 50, 50}));
  EXPECT_EQ(sum += unknown, (Traffic{8, 210, std::nullopt, std::nullopt}));
}

}  // namespace
}  // namespace molen::comm
