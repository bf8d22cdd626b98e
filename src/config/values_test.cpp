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

TEST(Values, RefusalsSayWhatIsExpected) {
  const auto length = [](const char* text) { return parse_horizon(text).reason(); };
  const std::string example = "a length such as \"2000 steps\", \"450B tokens\", \"12 h\" or \"3 epochs\"";
  EXPECT_EQ(length("steps"), example);
  EXPECT_EQ(length("12 parsecs"), example);
  EXPECT_EQ(length("1.5 steps"), "a whole number of steps");
  EXPECT_EQ(length("1.5 tokens"), "a whole number of tokens");
  EXPECT_EQ(length("1.0000001M tokens"), "a whole number of tokens");
  EXPECT_EQ(length("9007199254740992 steps"), "a length below 2^53");
  EXPECT_EQ(parse_horizon("9007199254740991 steps").value(), steps(9007199254740991));
  EXPECT_EQ(length("9007199254740992 s"), "a length below 2^53 seconds");
  EXPECT_TRUE(parse_horizon("9007199254740991 s").ok());
  EXPECT_EQ(parse_seconds("2").reason(), "a time such as \"100 ms\", \"30 s\" or \"12 h\"");
  EXPECT_EQ(parse_watts("2").reason(), "a power such as \"300 W\" or \"1.2 MW\"");
  const std::string size = "a size such as \"512 MiB\" or \"40 GB\"";
  EXPECT_EQ(parse_bytes("").reason(), size);
  EXPECT_EQ(parse_bytes("8192 TiB").reason(), size + ", below 2^53 of its base unit");
  EXPECT_TRUE(parse_bytes("8191 TiB").ok());
}

// Bytes are whole, up to the rounding of the product.
TEST(Values, WholeBytes) {
  EXPECT_EQ(parse_bytes("1.5 kB").value(), Bytes(1500));
  EXPECT_EQ(parse_bytes("0.3 GB").value(), Bytes(300'000'000));
  EXPECT_EQ(parse_bytes("4.35 TB").value(), Bytes(4'350'000'000'000));
  for (const char* text : {"0.3 B", "1.5 B", "1.2345 kB", "1000000.5 B", "0.1 KiB"})
    EXPECT_EQ(parse_bytes(text).ok() ? "accepted" : parse_bytes(text).reason(), "a whole number of bytes") << text;
}

TEST(Values, EveryUnitHasItsSize) {
  for (const auto& [text, seconds] : {std::pair{"2 s", 2.0},
                                      {"2 sec", 2.0},
                                      {"2 second", 2.0},
                                      {"2 seconds", 2.0},
                                      {"2 min", 120.0},
                                      {"2 minute", 120.0},
                                      {"2 minutes", 120.0},
                                      {"2 h", 7200.0},
                                      {"2 hour", 7200.0},
                                      {"2 hours", 7200.0},
                                      {"2 d", 172800.0},
                                      {"2 day", 172800.0},
                                      {"2 days", 172800.0},
                                      {"2 ms", 0.002},
                                      {"2 us", 2e-6},
                                      {"2 millisecond", 0.002},
                                      {"2 milliseconds", 0.002}}) {
    EXPECT_DOUBLE_EQ(parse_seconds(text).value().value, seconds) << text;
    EXPECT_DOUBLE_EQ(parse_horizon(text).value().value, seconds) << text;
  }
  for (const auto& [text, watts] : {std::pair{"2 mW", 0.002}, {"2 W", 2.0}, {"2 kW", 2e3}, {"2 MW", 2e6}})
    EXPECT_DOUBLE_EQ(parse_watts(text).value().value, watts) << text;
  const std::int64_t one = 1;
  for (const auto& [text, bytes] : {std::pair{"2 B", 2 * one},
                                    {"2 kB", 2'000 * one},
                                    {"2 MB", 2'000'000 * one},
                                    {"2 GB", 2'000'000'000 * one},
                                    {"2 TB", 2'000'000'000'000 * one},
                                    {"2 KiB", one << 11},
                                    {"2 MiB", one << 21},
                                    {"2 GiB", one << 31},
                                    {"2 TiB", one << 41}})
    EXPECT_EQ(parse_bytes(text).value(), Bytes(bytes)) << text;
  for (const auto& [text, count] : {std::pair{"2k tokens", 2e3},
                                    {"2K tokens", 2e3},
                                    {"2M tokens", 2e6},
                                    {"2B tokens", 2e9},
                                    {"2G tokens", 2e9},
                                    {"2T tokens", 2e12}})
    EXPECT_EQ(parse_horizon(text).value(), tokens(static_cast<std::int64_t>(count))) << text;
}

TEST(Values, LongTextIsNoNumber) {
  const std::string sixty_four = std::string(60, '0') + "12 s", longer = "0" + sixty_four;
  EXPECT_EQ(parse_seconds(sixty_four).value(), Seconds(12));
  EXPECT_FALSE(parse_seconds(longer).ok());
  EXPECT_EQ(parse_seconds("\t1 s\t").value(), Seconds(1));
  EXPECT_EQ(parse_seconds("1_2 s").value(), Seconds(12));
  EXPECT_FALSE(parse_seconds("12_ s").ok());
  EXPECT_FALSE(parse_seconds("1_.5 s").ok());
  EXPECT_EQ(parse_seconds(".5 s").value(), Seconds(0.5));
}

TEST(Values, OtherUnits) {
  EXPECT_EQ(parse_watts("300 W").value(), Watts(300));
  EXPECT_EQ(parse_watts("1.2 MW").value(), Watts(1.2e6));
  EXPECT_EQ(parse_watts("5 mW").value(), Watts(0.005));
  EXPECT_EQ(parse_joules("2 kWh").value(), Joules(7.2e6));
  EXPECT_EQ(parse_joules("5 MJ").value(), Joules(5e6));
  EXPECT_EQ(parse_joules("1.5 GWh").value(), Joules(5.4e12));
  EXPECT_FALSE(parse_joules("2 kW").ok());
  EXPECT_EQ(parse_kilograms("1.5 t").value(), Kilograms(1500));
  EXPECT_EQ(parse_kilograms("3 g").value(), Kilograms(0.003));
  EXPECT_FALSE(parse_kilograms("3").ok());
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
  EXPECT_EQ(print(tokens(2'000'000)), "2M tokens");
  EXPECT_EQ(print(tokens(3'000'000'000'000)), "3T tokens");
  EXPECT_EQ(print(tokens(0)), "0 tokens");
  EXPECT_EQ(print(tokens(999'999)), "999999 tokens");
  EXPECT_EQ(print(Seconds(0)), "0 s");
  EXPECT_EQ(print(Seconds(59)), "59 s");
  EXPECT_EQ(print(Seconds(60)), "1 min");
  EXPECT_EQ(print(Seconds(90)), "90 s");
  EXPECT_EQ(print(Seconds(3600)), "1 h");
  EXPECT_EQ(print(Seconds(86400)), "1 d");
  EXPECT_EQ(print(Seconds(172800)), "2 d");
  EXPECT_EQ(print(Seconds(90000)), "25 h");
  EXPECT_EQ(print(Horizon{Unit::kEpochs, 2.5}), "2.5 epochs");
  EXPECT_EQ(print(Bytes(0)), "0 B");
  EXPECT_EQ(print(Bytes(1023)), "1023 B");
  EXPECT_EQ(print(Bytes(1024)), "1 KiB");
  EXPECT_EQ(print(Bytes(1025)), "1025 B");
  EXPECT_EQ(print(Bytes(std::int64_t{3} << 20)), "3 MiB");
  EXPECT_EQ(print(Bytes(std::int64_t{3} << 30)), "3 GiB");
  EXPECT_EQ(print(Bytes(std::int64_t{1} << 40)), "1 TiB");
  EXPECT_EQ(print(steps(2000)), "2000 steps");
  EXPECT_EQ(print(Horizon{Unit::kSeconds, 43200}), "12 h");
  EXPECT_EQ(print(Seconds(0.1)), "0.1 s");
  EXPECT_EQ(print(Bytes(8192)), "8 KiB");
  EXPECT_EQ(print(Watts(300)), "300 W");
  EXPECT_EQ(print(Joules(7.2e6)), "2 kWh");
  EXPECT_EQ(print(Joules(1.8e6)), "500 Wh");
  EXPECT_EQ(print(Joules(4000)), "4000 J");
  EXPECT_EQ(print(Kilograms(1500)), "1500 kg");
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
  const double hours = std::floor(whole / 3600.0) * 3600.0;  // of an energy in Wh
  for (const double joules : {fraction, hours, rounded})
    RC_ASSERT(parse_joules(print(Joules(joules))).value() == Joules(joules));
  RC_ASSERT(parse_kilograms(print(Kilograms(fraction))).value() == Kilograms(fraction));
  RC_ASSERT(parse_seconds(print(Seconds(fraction))).value() == Seconds(fraction));
  const Bytes bytes(static_cast<std::int64_t>(rounded));
  RC_ASSERT(parse_bytes(print(bytes)).value() == bytes);
}

// No text crashes a parser, and an accepted value is finite and not negative.
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
