#include "slurm/option.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace molen::slurm {
namespace {

constexpr std::size_t kShownBytes = 40;  // of a user's text in a message
constexpr double kMostPowerW = 1e15;

std::string quoted(std::string_view text) {
  return "'" + plain(text, kShownBytes) + "'";
}

std::string listed(const std::vector<std::string_view>& words) {
  std::string all;
  for (const std::string_view word : words) all += (all.empty() ? "" : ", ") + std::string(word);
  return all;
}

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes a number such as 12 or 0.05 from the front of a text. A leading zero, an exponent or a sign is no such number.
std::optional<double> take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_decimal_digit(text[end])) ++end;
  if (end == 0 || (text[0] == '0' && end > 1)) return std::nullopt;
  if (end < text.size() && text[end] == '.') {
    const std::size_t point = end++;
    while (end < text.size() && is_decimal_digit(text[end])) ++end;
    if (end == point + 1) return std::nullopt;
  }
  double number = 0;
  if (std::from_chars(text.data(), text.data() + end, number).ec != std::errc()) return std::nullopt;
  text.remove_prefix(end);
  return number;
}

std::string_view without_first_space(std::string_view text) {
  if (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

// Returns what is wrong with a share; "" for nothing.
std::string wrong_slowdown(std::string_view text) {
  std::string expected = "slowdown=" + quoted(text) + " must be a share below 1, such as 0.05 or 5%";
  std::string_view rest = text;
  auto number = take_number(rest);
  if (!number) return expected;
  if (without_first_space(rest) == "%")
    *number /= 100.0;
  else if (!rest.empty())
    return expected;
  return *number < 1.0 ? "" : expected;
}

std::string wrong_power_budget(std::string_view text) {
  std::string expected = "power_budget=" + quoted(text) + " must be a power above zero, such as 800W or 2kW";
  std::string_view rest = text;
  const auto number = take_number(rest);
  if (!number) return expected;
  const std::string_view unit = without_first_space(rest);
  double factor = 0;
  if (unit == "mW") factor = 1e-3;
  if (unit == "W") factor = 1;
  if (unit == "kW") factor = 1e3;
  if (unit == "MW") factor = 1e6;
  const double watts = *number * factor;
  return watts > 0 && watts < kMostPowerW ? "" : expected;
}

// Takes one "key=value"; returns what is wrong with it.
std::string take_value(EnergyOption& option, std::string_view part) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const bool slowdown = key == "slowdown";
  if (equals == std::string_view::npos || (!slowdown && key != "power_budget"))
    return quoted(part) + " must be slowdown=SHARE or power_budget=POWER";
  const std::string_view value = part.substr(equals + 1);
  std::string& to = slowdown ? option.slowdown : option.power_budget;
  if (!to.empty()) return std::string(key) + " is there twice";
  to = value;
  return slowdown ? wrong_slowdown(value) : wrong_power_budget(value);
}

// Returns why values have no meaning beside the policy, as `molen train` would refuse them.
std::string wrong_beside_policy(const EnergyOption& option) {
  if (!option.slowdown.empty() && option.policy != "min_energy" && option.policy != "sweep")
    return "slowdown is for the policies min_energy and sweep";
  if (!option.power_budget.empty() && option.policy != "monitor")
    return "power_budget chooses the settings itself: use it with monitor";
  return "";
}

}  // namespace

const std::vector<std::string_view>& option_policies() {
  static const std::vector<std::string_view> policies{"off",      "monitor",         "min_energy",
                                                      "min_time", "min_time_energy", "sweep"};
  return policies;
}

Parsed<EnergyOption> parse_option(std::string_view text) {
  if (text.size() > kMostOptionBytes) return {{}, "a text of more than 256 bytes"};
  EnergyOption option;
  std::size_t end = std::min(text.find(','), text.size());
  const std::string_view policy = text.substr(0, end);
  if (std::ranges::find(option_policies(), policy) == option_policies().end())
    return {{}, quoted(policy) + " is none of the policies " + listed(option_policies())};
  option.policy = policy == "off" ? "none" : policy;
  while (end < text.size()) {
    const std::size_t begin = end + 1;
    end = std::min(text.find(',', begin), text.size());
    if (std::string wrong = take_value(option, text.substr(begin, end - begin)); !wrong.empty()) return {{}, wrong};
  }
  if (std::string wrong = wrong_beside_policy(option); !wrong.empty()) return {{}, wrong};
  return {option, ""};
}

std::vector<std::pair<const char*, std::string>> variables_of(const EnergyOption& option) {
  return {{"MOLEN_ENERGY_POLICY", option.policy},
          {"MOLEN_ENERGY_SLOWDOWN", option.slowdown},
          {"MOLEN_ENERGY_POWER_BUDGET", option.power_budget}};
}

std::string plain(std::string_view text, std::size_t most) {
  std::string shown(text.substr(0, most));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown;
}

}  // namespace molen::slurm
