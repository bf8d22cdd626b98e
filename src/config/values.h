// Values with units as users write them: "450B tokens", "12 h", "300 W", "2 GiB". Each type has one parser and one
// printer, and parse(print(v)) == v exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace molen::config {

std::string_view trimmed(std::string_view text);  // returns `text` without the spaces and tabs at both ends

// A length of training: how long to run, when to save, how long to warm up.
struct Horizon {
  enum class Unit { kSteps, kTokens, kSeconds, kEpochs };
  Unit unit = Unit::kSteps;
  double value = 0.0;  // kSteps and kTokens: a whole number below 2^53
  std::int64_t count() const { return static_cast<std::int64_t>(value); }
  bool operator==(const Horizon&) const = default;
};
constexpr Horizon steps(std::int64_t n) {
  return {Horizon::Unit::kSteps, static_cast<double>(n)};
}
constexpr Horizon tokens(std::int64_t n) {
  return {Horizon::Unit::kTokens, static_cast<double>(n)};
}

using Kilograms = Quantity<struct KilogramsTag, double>;  // of CO2e

// The activations that backward computes again.
struct Recompute {
  enum class Mode { kNone, kFull, kParts, kBudget };
  Mode mode = Mode::kNone;
  std::vector<std::string> parts = {};  // kParts: names of layer parts, "attention", "norm_up", ...
  Bytes budget{0};                      // kBudget: limit on the memory plan of a rank
  std::int64_t every = 1;               // kFull, kParts: only layers whose number is divisible by this
  bool operator==(const Recompute&) const = default;
};

// Numbers are decimals with optional underscores and exponent. Magnitudes of counts: k, M, B (or G), T, powers of 1000.
// Failures describe the expected text; values are finite and not negative.
Result<Horizon> parse_horizon(std::string_view text);      // step(s), token(s), epoch(s), s, min, h, d
Result<Seconds> parse_seconds(std::string_view text);      // us, ms, s, min, h, d
Result<Watts> parse_watts(std::string_view text);          // mW, W, kW, MW
Result<Joules> parse_joules(std::string_view text);        // J, kJ, MJ, GJ, Wh, kWh, MWh, GWh
Result<Kilograms> parse_kilograms(std::string_view text);  // mg, g, kg, t
Result<Bytes> parse_bytes(std::string_view text);          // B, kB, MB, GB, TB (1000), KiB, MiB, GiB, TiB (1024)

std::string print(const Horizon& horizon);
std::string print(Seconds seconds);
std::string print(Watts watts);
std::string print(Joules joules);
std::string print(Kilograms kilograms);
std::string print(Bytes bytes);

}  // namespace molen::config
