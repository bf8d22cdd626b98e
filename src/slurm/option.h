// The text of Slurm's option --energy. This folder becomes a plugin that Slurm loads into its daemons, so apart from
// its tests it uses nothing but the standard library.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace molen::slurm {

inline constexpr std::size_t kMostOptionBytes = 256;

// A value, or what is wrong with its text; a sentence for a terminal, without what could act on it.
template <class T>
struct Parsed {
  T value = {};
  std::string wrong;
};

// What a user asks for. `slowdown` and `power_budget` are texts that the configuration keys of these names accept, and
// empty where they are not asked for.
struct EnergyOption {
  std::string policy;  // a value of the key energy.policy; "off" is "none"
  std::string slowdown, power_budget;
};

// Returns the words that the policy may be.
const std::vector<std::string_view>& option_policies();

// Parses "POLICY[,key=value...]", such as "min_energy,slowdown=0.05" or "monitor,power_budget=2kW".
Parsed<EnergyOption> parse_option(std::string_view text);

// Returns the variables of the environment that have these values for `molen`; one with an empty value is to be
// removed, because a step must not take a half of what its job was asked for.
std::vector<std::pair<const char*, std::string>> variables_of(const EnergyOption& option);

// Returns the text with each character but printable ASCII as '?', cut to `most` bytes.
std::string plain(std::string_view text, std::size_t most);

}  // namespace molen::slurm
