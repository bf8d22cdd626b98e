#include "base/clock.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace molen {
namespace {

double time_of(const char* text) {
  const auto time = parse_time(text);
  EXPECT_TRUE(time.ok()) << time.reason();
  return time ? time.value() : -1.0;
}

TEST(ParseTime, FormsOfIso8601) {
  EXPECT_EQ(time_of("1970-01-01"), 0.0);
  EXPECT_EQ(time_of("1970-01-02T00:00Z"), 86400.0);
  // Seconds since 1970 from `date -u -d TIME +%s`.
  EXPECT_EQ(time_of("2026-11-29T06:22:36Z"), 1795933356.0);
  EXPECT_EQ(time_of("2026-11-29 06:22:36"), 1795933356.0);
  EXPECT_EQ(time_of("2026-11-29T06:22:36.25Z"), 1795933356.25);
  EXPECT_EQ(time_of("2026-11-29T07:22:36+01:00"), 1795933356.0);
  EXPECT_EQ(time_of("2026-11-29T01:52:36-04:30"), 1795933356.0);
  EXPECT_EQ(time_of("2024-02-29"), 1709164800.0);
}

TEST(ParseTime, RefusesAnythingElse) {
  for (const char* text : {"",
                           "2026",
                           "2026-13-01",
                           "2026-02-29",
                           "2026-11-31",
                           "2026-1-2",
                           "2026-11-29T",
                           "2026-11-29T24:00",
                           "2026-11-29T06:60",
                           "2026-11-29T06:22:60",
                           "2026-11-29T06:22:",
                           "2026-11-29T06:22:36.",
                           "2026-11-29T06:22Zx",
                           "2026-11-29T06:22+1",
                           "2026-11-29T06:22+01",
                           "1969-12-31",
                           "20261129",
                           "now",
                           "2026-11-29t06:22",
                           " 2026-11-29",
                           "2026-11-29 "}) {
    const auto time = parse_time(text);
    ASSERT_FALSE(time.ok()) << text;
    EXPECT_NE(time.reason().find("expected one such as 2026-11-21"), std::string::npos) << time.reason();
  }
}

TEST(UtcTimestamp, OfTimesThatHaveNoDate) {
  EXPECT_EQ(utc_timestamp(253402300799.0), "9999-12-31T23:59:59Z");
  for (const double wall : {-1.0, 253402300800.0, 1e300, HUGE_VAL, std::nan("")})
    EXPECT_EQ(utc_timestamp(wall), "(no date)");
}

// utc_timestamp is the C library's calendar; parse_time computes by the C++ library's.
RC_GTEST_PROP(ParseTimeLaws, ReadsWhatUtcTimestampWrites, ()) {
  const auto wall = *rc::gen::inRange<std::int64_t>(0, 253402300800);
  const auto time = parse_time(utc_timestamp(static_cast<double>(wall)));
  RC_ASSERT(time.ok());
  RC_ASSERT(time.value() == static_cast<double>(wall));
}

}  // namespace
}  // namespace molen
