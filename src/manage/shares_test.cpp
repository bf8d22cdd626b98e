#include "manage/shares.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace molen::manage {
namespace {

double sum_of(const std::vector<double>& watts) {
  return std::accumulate(watts.begin(), watts.end(), 0.0);
}

rc::Gen<Demand> demands() {
  return rc::gen::exec([] {
    Demand d;
    d.least = *rc::gen::inRange(0, 1000);
    d.most = d.least + *rc::gen::inRange(0, 1000);
    d.wants = *rc::gen::inRange(0, 2500);
    return d;
  });
}

struct Sums {
  double least = 0, wanted = 0, most = 0;
  explicit Sums(const std::vector<Demand>& all) {
    for (const Demand& d : all) least += d.least, wanted += std::clamp(d.wants, d.least, d.most), most += d.most;
  }
};

// Sums and quotients of n terms up to 2000 are off by at most 4 n roundings of their sum.
double rounding(const std::vector<Demand>& all) {
  const auto n = static_cast<double>(all.size());
  return 4.0 * n * 2000.0 * n * std::numeric_limits<double>::epsilon();
}

RC_GTEST_PROP(DividePower, KeepsTheCapAndTheBounds, ()) {
  const auto all = *rc::gen::container<std::vector<Demand>>(demands());
  const double power = *rc::gen::inRange(-500, 20'000);
  const Shares shares = divide_power(power, all);
  const Sums sums(all);
  RC_ASSERT(shares.watts.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    RC_ASSERT(shares.watts[i] >= all[i].least && shares.watts[i] <= all[i].most);
  RC_ASSERT(shares.met == (power >= sums.least));
  if (shares.met)
    RC_ASSERT(sum_of(shares.watts) <= power + rounding(all));
  else
    RC_ASSERT(sum_of(shares.watts) == sums.least);
  // Nothing is left over while somebody could use it.
  if (power >= sums.least) RC_ASSERT(std::abs(sum_of(shares.watts) - std::min(power, sums.most)) <= rounding(all));
}

RC_GTEST_PROP(DividePower, FollowsDemand, ()) {
  auto all = *rc::gen::nonEmpty(rc::gen::container<std::vector<Demand>>(demands()));
  const double power = *rc::gen::inRange(0, 20'000);
  const std::size_t one = *rc::gen::inRange<std::size_t>(0, all.size());
  // A twin that wants more gets no less.
  Demand twin = all[one];
  twin.wants += *rc::gen::inRange(0, 500);
  all.push_back(twin);
  const Shares shares = divide_power(power, all);
  RC_ASSERT(shares.watts.back() >= shares.watts[one] - rounding(all));
  // Where the power covers what all want, each gets at least that.
  if (power >= Sums(all).wanted)
    for (std::size_t i = 0; i < all.size(); ++i)
      RC_ASSERT(shares.watts[i] >= std::clamp(all[i].wants, all[i].least, all[i].most) - rounding(all));
  // Whoever wants more than before gets no less than before, and the others no more.
  auto hungrier = all;
  hungrier[one].wants += *rc::gen::inRange(0, 500);
  const Shares after = divide_power(power, hungrier);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == one)
      RC_ASSERT(after.watts[i] >= shares.watts[i] - rounding(all));
    else
      RC_ASSERT(after.watts[i] <= shares.watts[i] + rounding(all));
  }
}

RC_GTEST_PROP(DividePower, GrowsWithThePower, ()) {
  const auto all = *rc::gen::container<std::vector<Demand>>(demands());
  const double power = *rc::gen::inRange(0, 20'000), more = power + *rc::gen::inRange(0, 1000);
  const Shares before = divide_power(power, all), after = divide_power(more, all);
  for (std::size_t i = 0; i < all.size(); ++i) RC_ASSERT(after.watts[i] >= before.watts[i] - rounding(all));
}

RC_GTEST_PROP(DividePower, DoesNotDependOnTheOrder, ()) {
  const auto all = *rc::gen::container<std::vector<Demand>>(demands());
  const double power = *rc::gen::inRange(0, 20'000);
  const auto reversed = std::vector<Demand>(all.rbegin(), all.rend());
  const Shares there = divide_power(power, all), back = divide_power(power, reversed);
  for (std::size_t i = 0; i < all.size(); ++i)
    RC_ASSERT(std::abs(there.watts[i] - back.watts[all.size() - 1 - i]) <= rounding(all));
}

TEST(DividePower, KnownCases) {
  const std::vector<Demand> two{{100, 400, 300}, {100, 400, 150}};
  EXPECT_EQ(divide_power(350, two).watts, (std::vector<double>{220, 130})) << "150 W above the least as 200 to 50";
  EXPECT_EQ(divide_power(450, two).watts, (std::vector<double>{300, 150}));
  EXPECT_EQ(divide_power(625, two).watts, (std::vector<double>{350, 275})) << "half of the way to the greatest";
  EXPECT_EQ(divide_power(1e9, two).watts, (std::vector<double>{400, 400}));
  const Shares unmet = divide_power(150, two);
  EXPECT_EQ(unmet.watts, (std::vector<double>{100, 100}));
  EXPECT_FALSE(unmet.met);
  EXPECT_TRUE(divide_power(0, {}).met);
  EXPECT_FALSE(divide_power(-1, {}).met);
  const std::vector<Demand> wrong{{2, 1, 1}};
  EXPECT_THROW(divide_power(1, wrong), UsageError);
  EXPECT_THROW(divide_power(std::nan(""), two), UsageError);
  const std::vector<Demand> unknown{{0, 1, std::nan("")}};
  EXPECT_THROW(divide_power(1, unknown), UsageError);
}

}  // namespace
}  // namespace molen::manage
