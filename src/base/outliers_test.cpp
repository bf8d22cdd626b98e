#include "base/outliers.h"

#include <fmt/format.h>
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
  EXPECT_EQ(said(values), "the greatest of 5 nodes has 1.2 times the mean (imbalance); outliers: n3 (+25.0 %)");
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
  EXPECT_EQ(
      said({1, 1, 4}),
      "the greatest of 3 nodes has 2 times the mean (imbalance); 3 nodes are too few to name outliers, at least 4 "
      "are needed");
  EXPECT_EQ(
      said({5, 5, 5, 5}),
      "the greatest of 4 nodes has 1 times the mean (imbalance); no outliers: no distance from the median exceeds both "
      "3 scaled median absolute deviations and 5 % of the median");
  EXPECT_EQ(spread_of(std::vector<double>{0, 0, 0, 0}).imbalance, 0.0);
}

// Node n3 has twice the power because it counts its GPU too, n5 half of it because it lost readings. Both would be
// outliers.
TEST(Outliers, WhatIsNotComparableIsNamedAndNotCompared) {
  const std::vector<Candidate> nodes{{"n1", 100, "cpu", ""},
                                     {"n2", 101, "cpu", ""},
                                     {"n3", 200, "cpu gpu0", ""},
                                     {"n4", 99, "cpu", ""},
                                     {"n5", 50, "cpu", "5 periods without a reading"},
                                     {"n6", std::nullopt, "", ""},
                                     {"n7", 100, "cpu", ""}};
  const Comparison c = compare(nodes);
  EXPECT_EQ(c.names, (std::vector<std::string>{"n1", "n2", "n4", "n7"}));
  EXPECT_EQ(c.values, (std::vector<double>{100, 101, 99, 100}));
  EXPECT_EQ(c.spread.outliers, Places{});
  EXPECT_DOUBLE_EQ(c.spread.imbalance, 1.01);
  EXPECT_EQ(
      comparison_text(c, "node"),
      "the greatest of 4 nodes has 1.01 times the mean (imbalance); no outliers: no distance from the median "
      "exceeds both 3 scaled median absolute deviations and 5 % of the median; not compared: n3, other scopes: cpu "
      "gpu0; n5, 5 periods without a reading; n6, no reading");
}

TEST(Outliers, TheMostCommonScopesAreCompared) {
  const std::vector<Candidate> nodes{{"n1", 1, "a", ""}, {"n2", 2, "b", ""}, {"n3", 3, "b", ""}};
  EXPECT_EQ(compare(nodes).names, (std::vector<std::string>{"n2", "n3"}));
  EXPECT_EQ(compare(std::span(nodes).first(2)).names, (std::vector<std::string>{"n1"})) << "the first decides";
  EXPECT_EQ(comparison_text(compare(std::span(nodes).first(2)), "node"), "not compared: n2, other scopes: b");
  EXPECT_EQ(comparison_text(compare({}), "node"), "");
  std::vector<Candidate> many;
  for (int i = 1; i <= 13; ++i) many.push_back({fmt::format("n{}", i), std::nullopt, "", ""});
  const std::string text = comparison_text(compare(many), "node");
  EXPECT_TRUE(text.ends_with("n10, no reading; and 3 more")) << text;
}

}  // namespace
}  // namespace molen
