// Parses and prints values with units.
#include "config/values.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace molen::config {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

namespace {

constexpr double kLargest = 9007199254740992.0;  // 2^53: every whole number up to this is a double
constexpr std::size_t kLongest = 64;             // characters of a value with a unit

using Units = std::pair<std::string_view, double>;
constexpr std::array<Units, 17> kTimes{{{"s", 1},
                                        {"sec", 1},
                                        {"second", 1},
                                        {"seconds", 1},
                                        {"min", 60},
                                        {"minute", 60},
                                        {"minutes", 60},
                                        {"h", 3600},
                                        {"hour", 3600},
                                        {"hours", 3600},
                                        {"d", 86400},
                                        {"day", 86400},
                                        {"days", 86400},
                                        {"ms", 1e-3},
                                        {"us", 1e-6},
                                        {"millisecond", 1e-3},
                                        {"milliseconds", 1e-3}}};
constexpr std::array<Units, 4> kPowers{{{"mW", 1e-3}, {"W", 1}, {"kW", 1e3}, {"MW", 1e6}}};
constexpr std::array<Units, 8> kEnergies{
    {{"J", 1}, {"kJ", 1e3}, {"MJ", 1e6}, {"GJ", 1e9}, {"Wh", 3.6e3}, {"kWh", 3.6e6}, {"MWh", 3.6e9}, {"GWh", 3.6e12}}};
constexpr std::array<Units, 4> kMasses{{{"mg", 1e-6}, {"g", 1e-3}, {"kg", 1}, {"t", 1e3}}};
constexpr std::array<Units, 9> kSizes{{{"B", 1},
                                       {"kB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"KiB", 1024.0},
                                       {"MiB", 1048576.0},
                                       {"GiB", 1073741824.0},
                                       {"TiB", 1099511627776.0}}};
constexpr std::array<Units, 6> kMagnitudes{{{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}}};

template <std::size_t N>
std::optional<double> factor_of(const std::array<Units, N>& units, std::string_view name) {
  for (const auto& [unit, factor] : units) {
    if (unit == name) return factor;
  }
  return std::nullopt;
}

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns the leading number and the text after it.
std::optional<std::pair<double, std::string>> split(std::string_view text) {
  text = trimmed(text);
  // from_chars would accept "inf", "nan" and signs.
  if (text.empty() || text.size() > kLongest || !(digit(text[0]) || text[0] == '.')) return std::nullopt;
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool separator = text[i] == '_' && i > 0 && i + 1 < text.size() && digit(text[i - 1]) && digit(text[i + 1]);
    if (!separator) plain += text[i];
  }
  double number = 0.0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  return std::pair(number, std::string(trimmed(std::string_view(end, plain.data() + plain.size()))));
}

std::optional<Horizon::Unit> count_unit(std::string_view name) {
  if (name == "step" || name == "steps") return Horizon::Unit::kSteps;
  if (name == "token" || name == "tokens") return Horizon::Unit::kTokens;
  if (name == "epoch" || name == "epochs") return Horizon::Unit::kEpochs;
  return std::nullopt;
}

const Failure kNoHorizon{"a length such as \"2000 steps\", \"450B tokens\", \"12 h\" or \"3 epochs\""};

// Accepts steps and tokens only as whole numbers: 1.5B tokens are whole, 1.0001 steps are not.
Result<Horizon> counted(Horizon::Unit unit, double value) {
  if (unit != Horizon::Unit::kEpochs) {
    const double whole = std::round(value);
    // Products such as 0.3 * 1e9 have an error of one rounding.
    if (std::abs(value - whole) > 1e-15 * value) {
      return Failure{unit == Horizon::Unit::kSteps ? "a whole number of steps" : "a whole number of tokens"};
    }
    value = whole;
  }
  if (value >= kLargest) return Failure{"a length below 2^53"};
  return Horizon{unit, value};
}

template <std::size_t N>
Result<double> scaled(std::string_view text, const std::array<Units, N>& units, std::string_view expected) {
  const auto parts = split(text);
  if (!parts) return Failure{std::string(expected)};
  const auto factor = factor_of(units, parts->second);
  if (!factor) return Failure{std::string(expected)};
  const double value = parts->first * *factor;
  if (!(value < kLargest)) return Failure{fmt::format("{}, below 2^53 of its base unit", expected)};
  return value;
}

// Prints the value in the largest unit that divides it, else in the base unit. Units are above one and ascend.
template <std::size_t N>
std::string in_largest(double value, const std::array<Units, N>& units, std::string_view base,
                       std::string_view separator = " ") {
  const Units* best = nullptr;
  for (const Units& unit : units)
    if (value >= unit.second && std::fmod(value, unit.second) == 0.0) best = &unit;
  if (!best) return fmt::format("{}{}{}", value, base.empty() ? "" : separator, base);
  return fmt::format("{}{}{}", value / best->second, separator, best->first);
}

}  // namespace

Result<Horizon> parse_horizon(std::string_view text) {
  const auto parts = split(text);
  if (!parts) return kNoHorizon;
  const auto& [number, rest] = *parts;
  if (const auto unit = count_unit(rest)) return counted(*unit, number);
  if (const auto factor = factor_of(kTimes, rest)) {
    const double value = number * *factor;
    if (value >= kLargest) return Failure{"a length below 2^53 seconds"};
    return Horizon{Horizon::Unit::kSeconds, value};
  }
  if (rest.empty()) return kNoHorizon;
  const auto magnitude = factor_of(kMagnitudes, std::string_view(rest).substr(0, 1));
  const auto unit = count_unit(trimmed(std::string_view(rest).substr(1)));
  if (!magnitude || !unit || *unit == Horizon::Unit::kEpochs) return kNoHorizon;
  return counted(*unit, number * *magnitude);
}

Result<Seconds> parse_seconds(std::string_view text) {
  auto value = scaled(text, kTimes, "a time such as \"100 ms\", \"30 s\" or \"12 h\"");
  if (!value) return Failure{value.reason()};
  return Seconds(value.value());
}

Result<Watts> parse_watts(std::string_view text) {
  auto value = scaled(text, kPowers, "a power such as \"300 W\" or \"1.2 MW\"");
  if (!value) return Failure{value.reason()};
  return Watts(value.value());
}

Result<Joules> parse_joules(std::string_view text) {
  auto value = scaled(text, kEnergies, "an energy such as \"500 kWh\" or \"1.2 MWh\"");
  if (!value) return Failure{value.reason()};
  return Joules(value.value());
}

Result<Kilograms> parse_kilograms(std::string_view text) {
  auto value = scaled(text, kMasses, "a mass of CO2e such as \"120 kg\" or \"1.5 t\"");
  if (!value) return Failure{value.reason()};
  return Kilograms(value.value());
}

Result<Bytes> parse_bytes(std::string_view text) {
  auto value = scaled(text, kSizes, "a size such as \"512 MiB\" or \"40 GB\"");
  if (!value) return Failure{value.reason()};
  const double whole = std::round(value.value());
  if (std::abs(value.value() - whole) > 1e-15 * whole) return Failure{"a whole number of bytes"};
  return Bytes(static_cast<std::int64_t>(whole));
}

std::string print(const Horizon& h) {
  static constexpr std::array<Units, 3> kLetters{{{"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
  switch (h.unit) {
    case Horizon::Unit::kSteps:
      return fmt::format("{} steps", h.count());
    case Horizon::Unit::kTokens:
      return in_largest(h.value, kLetters, "", "") + " tokens";
    case Horizon::Unit::kSeconds:
      return print(Seconds(h.value));
    case Horizon::Unit::kEpochs:
      return fmt::format("{} epochs", h.value);
  }
  return "";
}

std::string print(Seconds seconds) {
  static constexpr std::array<Units, 3> kLong{{{"min", 60}, {"h", 3600}, {"d", 86400}}};
  return in_largest(seconds.value, kLong, "s");
}

std::string print(Watts watts) {
  return fmt::format("{} W", watts.value);
}

std::string print(Joules joules) {
  static constexpr std::array<Units, 3> kHours{{{"Wh", 3.6e3}, {"kWh", 3.6e6}, {"MWh", 3.6e9}}};
  return in_largest(joules.value, kHours, "J");
}

std::string print(Kilograms kilograms) {
  return fmt::format("{} kg", kilograms.value);
}

std::string print(Bytes bytes) {
  static constexpr std::array<std::pair<const char*, int>, 4> kBinary{
      {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};
  for (const auto& [unit, shift] : kBinary) {
    const std::int64_t size = std::int64_t{1} << shift;
    if (bytes.value >= size && bytes.value % size == 0) return fmt::format("{} {}", bytes.value / size, unit);
  }
  return fmt::format("{} B", bytes.value);
}

}  // namespace molen::config
