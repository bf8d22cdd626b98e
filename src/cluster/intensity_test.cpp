#include "cluster/intensity.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/clock.h"
#include "base/error.h"

namespace molen::cluster {
namespace {

constexpr double kGramPerKwh = 1e-3 / 3.6e6;  // kg/J

std::string intensity_refusal(const std::string& text) {
  try {
    parse_intensity(text, "f.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Intensity, AValueHoldsUntilTheNextOne) {
  const IntensitySeries s = parse_intensity(
      "time,note,g_per_kwh\n2026-11-29T00:00Z,a,100\n2026-11-29T01:00Z,b,300\n2026-11-29T03:00Z,c,50\n", "f.csv");
  const double begin = parse_time("2026-11-29").value();
  EXPECT_EQ(s.begin_s(), begin);
  EXPECT_EQ(s.end_s(), begin + 5 * 3600);  // the last value holds for two hours, as the one before
  EXPECT_EQ(s.at(begin), 100 * kGramPerKwh);
  EXPECT_EQ(s.at(begin + 3599), 100 * kGramPerKwh);
  EXPECT_EQ(s.at(begin + 3600), 300 * kGramPerKwh);
  EXPECT_EQ(s.at(s.end_s()), 50 * kGramPerKwh);
  // Half an hour of 100, two hours of 300, one of 50.
  EXPECT_NEAR(s.mean(begin + 1800, begin + 4 * 3600), 700.0 / 3.5 * kGramPerKwh, 1e-12 * kGramPerKwh);
  EXPECT_TRUE(s.covers(begin, s.end_s()));
  EXPECT_FALSE(s.covers(begin - 1, begin));
  EXPECT_FALSE(s.covers(begin, s.end_s() + 1));
}

TEST(Intensity, AShortIntervalAfterYears) {
  const IntensitySeries s = parse_intensity("time,g_per_kwh\n1990-01-01,900\n2026-01-01,40\n2026-01-02,80\n", "f.csv");
  const double change = parse_time("2026-01-02").value();
  EXPECT_EQ(s.mean(change - 0.25, change - 0.125), 40 * kGramPerKwh);
  EXPECT_DOUBLE_EQ(s.mean(change - 0.25, change + 0.25), 60 * kGramPerKwh);
}

TEST(Intensity, ReadsFilesOfElectricityMaps) {
  for (const char* name : {"Carbon intensity gCO\u2082eq/kWh (Life cycle)", "Carbon Intensity gCO\u2082eq/kWh (LCA)"}) {
    const IntensitySeries s = parse_intensity(
        std::string("Datetime (UTC),Country,Carbon intensity gCO\u2082eq/kWh (direct),") + name +
            "\n2024-01-01 00:00:00,\"Holland, North\",200,268\n2024-01-01 01:00:00,\"Holland, North\",210,278\n",
        "NL.csv");
    EXPECT_EQ(s.values().size(), 2u);
    EXPECT_EQ(s.at(s.begin_s()), 268 * kGramPerKwh) << "the direct emissions leave out those of building and fuel";
  }
}

TEST(Intensity, RefusesABrokenFile) {
  const std::string head = "time,g_per_kwh\n2026-11-29T00:00Z,100\n";
  EXPECT_NE(intensity_refusal("").find("f.csv: the file is empty"), std::string::npos);
  EXPECT_NE(intensity_refusal("time,grams\n").find("f.csv:1: there is no column of carbon intensities"),
            std::string::npos);
  EXPECT_NE(intensity_refusal("when,g_per_kwh\n").find("no column of times"), std::string::npos);
  EXPECT_NE(intensity_refusal("time,g_per_kwh,g_per_kwh\n").find("two columns have the same meaning"),
            std::string::npos);
  EXPECT_NE(intensity_refusal(head).find("1 value; at least two"), std::string::npos);
  EXPECT_NE(intensity_refusal(head + "2026-11-29T00:00Z,100\n").find("f.csv:3: 2026-11-29T00:00Z is not later"),
            std::string::npos);
  EXPECT_NE(intensity_refusal(head + "yesterday,100\n").find("f.csv:3: time: 'yesterday' is not a time"),
            std::string::npos);
  EXPECT_NE(intensity_refusal(head + "2026-11-30\n").find("f.csv:3: the line has 1 cell;"), std::string::npos);
  for (const char* value : {"", "-1", "2001", "nan", "inf", "1e400", "100 g", "0x10", " 100"})
    EXPECT_NE(intensity_refusal(head + "2026-11-30," + value + "\n").find("is not a carbon intensity"),
              std::string::npos)
        << value;
}

// The mean of an interval is that of its parts, weighted by their lengths.
RC_GTEST_PROP(IntensityLaws, MeansAddUp, ()) {
  const auto gaps = *rc::gen::suchThat(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 10000)),
                                       [](const auto& v) { return v.size() >= 2; });
  std::vector<IntensitySeries::Value> values;
  double time = 1e9;
  for (const int gap : gaps) {
    values.push_back({time, *rc::gen::inRange(0, 2000) * kGramPerKwh});
    time += gap;
  }
  const IntensitySeries s(values, "f.csv");
  const auto point = [&] { return s.begin_s() + (s.end_s() - s.begin_s()) * *rc::gen::inRange(0, 1001) / 1000.0; };
  std::vector<double> t{point(), point(), point()};
  std::ranges::sort(t);
  RC_PRE(t[0] < t[1] && t[1] < t[2]);
  const double parts = s.mean(t[0], t[1]) * (t[1] - t[0]) + s.mean(t[1], t[2]) * (t[2] - t[1]);
  // Each integral adds up to as many terms as there are values, whose roundings are relative to the whole series.
  const double rounding =
      4e-16 * static_cast<double>(values.size() + 4) * 2000 * kGramPerKwh * (s.end_s() - s.begin_s());
  RC_ASSERT(std::abs(parts - s.mean(t[0], t[2]) * (t[2] - t[0])) <= rounding);
  RC_ASSERT(s.mean(t[0], t[2]) >= -1e-18);
}

}  // namespace
}  // namespace molen::cluster
