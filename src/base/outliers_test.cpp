#include "base/outliers.h"

#include <gtest/gtest.h>

namespace molen {
namespace {

using Places = std::vector<std::size_t>;
const std::vector<std::string> kNames{"n1", "n2", "n3", "n4", "n5"};

std::string said(const std::vector<double>& values) {
  return spread_text(spread_of(values), std::span(kNames).first(values.size()), values, "node");
}

TEST(Outliers, AreFurtherThanThreeDeviationsAndFivePercent) {
  // Median 100; deviations 0, 1, 1, 2, 25 with the median 1, so 1.4826 scaled; three of them are 4.4478, and 5 % are 5.
  const std::vector<double> values{100, 99, 125, 101, 98};
  const Spread s = spread_of(values);
  EXPECT_DOUBLE_EQ(s.median, 100.0);
  EXPECT_DOUBLE_EQ(s.scaled_mad, 1.4826);
  EXPECT_DOUBLE_EQ(s.imbalance, 125.0 * 5 / 523.0);
  EXPECT_TRUE(s.judged);
  EXPECT_EQ(s.outliers, Places{2});
  EXPECT_EQ(said(values), "imbalance: the greatest of 5 nodes has 1.2 times the mean; outliers: n3 (+25.0 %)");
  EXPECT_EQ(spread_of(std::vector<double>{100, 99, 104.9, 101, 98}).outliers, Places{}) << "within 5 % of the median";
  EXPECT_EQ(spread_of(std::vector<double>{100, 99, 105.1, 101, 98}).outliers, Places{2});
  EXPECT_EQ(spread_of(std::vector<double>{100, 99, 94.9, 101, 102}).outliers, Places{2}) << "too little is one too";
  // Deviations 0, 8, 8, 16, 25: within three times 1.4826 times 8.
  EXPECT_EQ(spread_of(std::vector<double>{100, 92, 125, 108, 84}).outliers, Places{}) << "usual among these values";
}

TEST(Outliers, OfAnEvenNumberTheMedianIsBetweenTheTwoInTheMiddle) {
  const Spread s = spread_of(std::vector<double>{10, 20, 30, 100});
  EXPECT_DOUBLE_EQ(s.median, 25.0);
  EXPECT_DOUBLE_EQ(s.scaled_mad, 1.4826 * 10.0) << "deviations 15, 5, 5, 75";
  EXPECT_EQ(s.outliers, Places{3});
}

TEST(Outliers, FewValuesAreNotJudged) {
  EXPECT_EQ(said({10}), "");
  EXPECT_EQ(said({}), "");
  EXPECT_FALSE(spread_of(std::vector<double>{1, 1, 100}).judged);
  EXPECT_EQ(spread_of(std::vector<double>{1, 1, 100}).outliers, Places{});
  EXPECT_EQ(said({1, 1, 4}),
            "imbalance: the greatest of 3 nodes has 2 times the mean; 3 nodes are too few to name outliers, at least 4 "
            "are needed");
  EXPECT_EQ(
      said({5, 5, 5, 5}),
      "imbalance: the greatest of 4 nodes has 1 times the mean; no outliers: none is further than 3 scaled median "
      "absolute deviations and 5 % from the median");
  EXPECT_EQ(spread_of(std::vector<double>{0, 0, 0, 0}).imbalance, 0.0);
}

}  // namespace
}  // namespace molen
