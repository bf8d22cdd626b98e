#include "energy/cross_check.h"

#include <gtest/gtest.h>

namespace molen::energy {
namespace {

// A device whose counter and power are constant, read every half second.
class Device {
 public:
  std::string run(double seconds, double counted_w, double shown_w, double every_s = 0.5) {
    for (double t = every_s; t <= seconds + 1e-9; t += every_s) {
      time_s_ += every_s, counter_j_ += counted_w * every_s;
      check_.add(counter_j_, shown_w, time_s_);
    }
    return check_.doubt();
  }

 private:
  CrossCheck check_;
  double time_s_ = 0.0, counter_j_ = 0.0;
};

// The smoothing of the power may explain 5 s of zeus' case; it cannot explain a minute.
TEST(CrossCheck, AnIdleGpuThatCountsHalfOfItsPowerIsDoubted) {
  Device device;
  EXPECT_EQ(device.run(5.0, 187.0 / 5, 327.0 / 5), "");
  EXPECT_EQ(device.run(54.5, 187.0 / 5, 327.0 / 5).find("in 59 s the counter rose by 22"), 0U);
  EXPECT_EQ(device.run(120.0, 65.4, 65.4).find("in 60 s the counter rose by 22"), 0U)
      << "the greatest difference stays";
}

// Over a window of 60 s: a third of the larger one, and 1.5 s of the power.
TEST(CrossCheck, TheLimitIsAThirdAndASecondAndAHalf) {
  const double shown = 300.0, allowed = shown * 60.0 / 3 + 1.5 * shown;
  const auto of = [&](double joules) { return Device().run(60.5, (shown * 60.0 - joules) / 60.0, shown); };
  EXPECT_EQ(of(0.99 * allowed), "");
  EXPECT_NE(of(1.01 * allowed), "");
  // The counter may be the larger one as well.
  const double counted = (shown * 60.0 + 1.5 * shown) * 1.5;
  EXPECT_EQ(Device().run(60.5, 0.99 * counted / 60.0, shown), "");
  EXPECT_NE(Device().run(60.5, 1.01 * counted / 60.0, shown), "");
}

TEST(CrossCheck, AFaultAfterDaysShows) {
  Device device;
  EXPECT_EQ(device.run(3 * 86400.0, 300.0, 310.0), "");
  EXPECT_NE(device.run(120.0, 100.0, 310.0), "");
}

TEST(CrossCheck, SilenceContradictsNothing) {
  EXPECT_EQ(Device().run(600.0, 700.0, 60.0, 1.5), "") << "what the power was in between is not known";
  EXPECT_NE(Device().run(600.0, 700.0, 60.0, 1.0), "");
}

}  // namespace
}  // namespace molen::energy
