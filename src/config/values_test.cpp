#include "config/values.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace molen::config {
namespace {

using Unit = Horizon::Unit;

TEST(Values, Horizons) {
  const std::vector<std::pair<const char*, Horizon>> cases{{"2000 steps", steps(2000)},
                                                           {"1 step", steps(1)},
                                                           {"2_000 steps", steps(2000)},
                                                           {"10k steps", steps(10000)},
                                                           {"450B tokens", tokens(450'000'000'000)},
                                                           {"8.39 B tokens", tokens(8'390'000'000)},
                                                           {"0.3B tokens", tokens(300'000'000)},
                                                           {"15T tokens", tokens(15'000'000'000'000)},
                                                           {"1e9 tokens", tokens(1'000'000'000)},
                                                           {"2.5M tokens", tokens(2'500'000)},
                                                           {"12 h", {Unit::kSeconds, 43200}},
                                                           {"12h", {Unit::kSeconds, 43200}},
                                                           {"30 min", {Unit::kSeconds, 1800}},
                                                           {"1.5 d", {Unit::kSeconds, 129600}},
                                                           {"3 epochs", {Unit::kEpochs, 3}},
                                                           {"0.5 epochs", {Unit::kEpochs, 0.5}},
                                                           {"  7 tokens ", tokens(7)},
                                                           {"0 steps", steps(0)}};
  for (const auto& [text, expected] : cases) {
    const auto got = parse_horizon(text);
    ASSERT_TRUE(got.ok()) << text << ": " << got.reason();
    EXPECT_EQ(got.value(), expected) << text;
  }
}

TEST(Values, RefusedHorizons) {
  for (const char* text :
       {"",          " ",         "steps",      "12",        "450B",         "12 m",        "-5 steps",
        "+5 steps",  "nan steps", "inf tokens", "1.5 steps", "1e400 tokens", "1e18 tokens", "10 parsecs",
        "3M epochs", "5 5 steps", "1__0 steps", "_1 steps",  "0x10 steps",   "5 steps x",   "1e steps"}) {
    EXPECT_FALSE(parse_horizon(text).ok()) << text;
  }
  EXPECT_FALSE(parse_horizon(std::string(100000, '9') + " steps").ok());
}

TEST(Values, OtherUnits) {
  EXPECT_EQ(parse_watts("300 W").value(), Watts(300));
  EXPECT_EQ(parse_watts("1.2 MW").value(), Watts(1.2e6));
  EXPECT_EQ(parse_watts("5 mW").value(), Watts(0.005));
  EXPECT_FALSE(parse_watts("300").ok());
  EXPECT_FALSE(parse_watts("300 J").ok());
  EXPECT_EQ(parse_bytes("2 GiB").value(), Bytes(std::int64_t{2} << 30));
  EXPECT_EQ(parse_bytes("40 GB").value(), Bytes(40'000'000'000));
  EXPECT_FALSE(parse_bytes("2 Gib").ok());
  EXPECT_FALSE(parse_bytes("0.3 B").ok());
  EXPECT_EQ(parse_seconds("100 ms").value(), Seconds(0.1));
  EXPECT_EQ(parse_seconds("2 h").value(), Seconds(7200));
  EXPECT_FALSE(parse_seconds("2 steps").ok());
}

TEST(Values, PrintsTheLargestUnit) {
  EXPECT_EQ(print(tokens(450'000'000'000)), "450B tokens");
  EXPECT_EQ(print(tokens(1'500'000'000)), "1500M tokens");
  EXPECT_EQ(print(tokens(123)), "123 tokens");
  EXPECT_EQ(print(steps(2000)), "2000 steps");
  EXPECT_EQ(print(Horizon{Unit::kSeconds, 43200}), "12 h");
  EXPECT_EQ(print(Seconds(0.1)), "0.1 s");
  EXPECT_EQ(print(Bytes(8192)), "8 KiB");
  EXPECT_EQ(print(Watts(300)), "300 W");
}

// parse(print(v)) == v, exactly.
RC_GTEST_PROP(Values, RoundTrip, ()) {
  const double whole = static_cast<double>(*rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 53));
  const double factor = *rc::gen::element(1.0, 60.0, 1e3, 1e6, 3600.0, 86400.0);
  const double rounded = std::floor(whole / factor) * factor;  // often a multiple of a unit
  const double fraction = whole / 1048573.0;
  for (const Horizon& h :
       {Horizon{Unit::kSteps, rounded}, Horizon{Unit::kTokens, rounded}, Horizon{Unit::kSeconds, rounded},
        Horizon{Unit::kSeconds, fraction}, Horizon{Unit::kEpochs, fraction}}) {
    const auto again = parse_horizon(print(h));
    RC_ASSERT(again.ok());
    RC_ASSERT(again.value() == h);
  }
  RC_ASSERT(parse_watts(print(Watts(fraction))).value() == Watts(fraction));
  RC_ASSERT(parse_seconds(print(Seconds(fraction))).value() == Seconds(fraction));
  const Bytes bytes(static_cast<std::int64_t>(rounded));
  RC_ASSERT(parse_bytes(print(bytes)).value() == bytes);
}

// No text crashes a parser, and what one accepts is finite and not negative.
RC_GTEST_PROP(Values, AnyTextIsAcceptedOrRefused, ()) {
  const auto number =
      *rc::gen::element<std::string>("", "1", "1.5", ".", "1e", "9e999", "1_0", "_", "-1", "0x1", "nan");
  const auto unit =
      *rc::gen::element<std::string>("steps", "B tokens", "B", "h", " ", "k", "GiB", "W", "\xff", "kk steps");
  const std::string text = number + *rc::gen::element<std::string>("", " ", "\t", "\n") + unit;
  if (const auto h = parse_horizon(text)) RC_ASSERT(std::isfinite(h.value().value) && h.value().value >= 0.0);
  if (const auto b = parse_bytes(text)) RC_ASSERT(b.value().value >= 0);
  if (const auto w = parse_watts(text)) RC_ASSERT(std::isfinite(w.value().value) && w.value().value >= 0.0);
}

}  // namespace
}  // namespace molen::config
