#include "slurm/option.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "config/config.h"
#include "policy/step_policy.h"

namespace molen::slurm {
namespace {

EnergyOption accepted(const std::string& text) {
  const auto parsed = parse_option(text);
  EXPECT_EQ(parsed.wrong, "") << text;
  return parsed.value;
}

std::string refusal(std::string_view text) {
  const auto parsed = parse_option(text);
  EXPECT_TRUE(parsed.value.policy.empty() || parsed.wrong.empty()) << "nothing of a text that is refused";
  return parsed.wrong;
}

// What `molen train` makes of the variables of an option.
config::Config configured(const EnergyOption& option) {
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : variables_of(option)) variables[name] = value;
  return config::load(std::nullopt, {}, {}, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(EnergyOption, PoliciesAreThoseOfMolen) {
  std::vector<std::string> known{"off"};
  for (const std::string& name : policy::step_policy_names()) known.push_back(name);
  EXPECT_EQ(std::vector<std::string>(option_policies().begin(), option_policies().end()), known);
  for (const std::string& name : known)
    EXPECT_EQ(configured(accepted(name)).energy.policy, name == "off" ? "none" : name);
}

TEST(EnergyOption, ValuesReachTheKeys) {
  const struct {
    const char* text;
    double slowdown;
    std::optional<Watts> budget;
  } cases[] = {{"min_energy", 0, {}},
               {"min_energy,slowdown=0.05", 0.05, {}},
               {"sweep,slowdown=5%", 0.05, {}},
               {"sweep,slowdown=12.5 %", 0.125, {}},
               {"min_energy,slowdown=0", 0, {}},
               {"monitor,power_budget=800W", 0, Watts(800)},
               {"monitor,power_budget=2kW", 0, Watts(2000)},
               {"monitor,power_budget=1.25 MW", 0, Watts(1.25e6)},
               {"monitor,power_budget=500mW", 0, Watts(0.5)}};
  for (const auto& c : cases) {
    const config::Config config = configured(accepted(c.text));
    EXPECT_DOUBLE_EQ(config.energy.slowdown, c.slowdown) << c.text;
    EXPECT_EQ(config.energy.power_budget, c.budget) << c.text;
  }
}

TEST(EnergyOption, EveryVariableIsOfAKey) {
  std::vector<std::string> names, known;
  for (const auto& [name, value] : variables_of({})) {
    names.emplace_back(name);
    EXPECT_EQ(value, "") << "without a value it is removed";
  }
  for (const auto& key : config::environment_keys()) known.emplace_back(key.variable);
  EXPECT_EQ(names, known);
}

TEST(EnergyOption, RefusalsSayWhatWouldDo) {
  EXPECT_EQ(refusal(""), "'' is none of the policies off, monitor, min_energy, min_time, min_time_energy, sweep");
  EXPECT_EQ(refusal("min_enrgy"),
            "'min_enrgy' is none of the policies off, monitor, min_energy, min_time, min_time_energy, sweep");
  EXPECT_EQ(refusal("min_energy,slow=1"), "'slow=1' must be slowdown=SHARE or power_budget=POWER");
  EXPECT_EQ(refusal("min_energy,slowdown"), "'slowdown' must be slowdown=SHARE or power_budget=POWER");
  EXPECT_EQ(refusal("min_energy,"), "'' must be slowdown=SHARE or power_budget=POWER");
  EXPECT_EQ(refusal("min_energy,slowdown=0.1,slowdown=0.1"), "slowdown is there twice");
  EXPECT_EQ(refusal("off,slowdown=0.1"), "slowdown is for the policies min_energy and sweep");
  EXPECT_EQ(refusal("sweep,power_budget=1kW"), "power_budget chooses the settings itself: use it with monitor");
  for (const char* share : {"", "1", "100%", "-0.1", "+0.1", ".5", "5.", "05", "0.1.2", "1e-2", "nan", "inf", "0x1",
                            "5 W", "5  %", "0.5 ", " 0.5", "5%%"})
    EXPECT_EQ(refusal(std::string("sweep,slowdown=") + share),
              std::string("slowdown='") + share + "' must be a share below 1, such as 0.05 or 5%");
  for (const char* power : {"", "0W", "0.0 kW", "-5W", "300", "5 w", "5KW", "1e3W", "9999999999999MW", "W", "5 kWh"})
    EXPECT_EQ(refusal(std::string("monitor,power_budget=") + power),
              std::string("power_budget='") + power + "' must be a power above zero, such as 800W or 2kW");
}

TEST(EnergyOption, HostileTextIsBoundedAndShownPlainly) {
  EXPECT_EQ(refusal(std::string(kMostOptionBytes + 1, 'x')), "a text of more than 256 bytes");
  EXPECT_NE(refusal(std::string(kMostOptionBytes, 'x')), "");
  EXPECT_EQ(refusal("\x1b]0;x\x07\n\xff"),
            "'?]0;x?"
            "?"
            "?' is none of the policies off, monitor, min_energy, min_time, min_time_energy, sweep");
  EXPECT_EQ(refusal("%s%n").substr(0, 6), "'%s%n'");
  EXPECT_NE(refusal(std::string_view("monitor\0", 8)), "");
  EXPECT_LT(refusal("min_energy,slowdown=" + std::string(200, '9')).size(), 120U);
}

// Whatever is accepted is a configuration of molen, so no run is refused after it has waited in the queue.
RC_GTEST_PROP(EnergyOption, WhatIsAcceptedIsAConfiguration, ()) {
  const auto piece = rc::gen::element<std::string>("min_energy", "monitor", "sweep", "off", ",",
                                                   ",slowdown=", ",power_budget=", "0", "1", "9", "5", ".", "%", " ",
                                                   "k", "W", "mW", "e", "-", "_", "\"", "\n", "none", "#");
  const auto pieces = *rc::gen::container<std::vector<std::string>>(piece);
  std::string text = *rc::gen::element<std::string>("", "min_energy,slowdown=", "sweep,slowdown=0.",
                                                    "monitor,power_budget=", "monitor,power_budget=1");
  for (const std::string& p : pieces) text += p;
  const auto parsed = parse_option(text);
  RC_CLASSIFY(parsed.wrong.empty());
  if (!parsed.wrong.empty()) {
    RC_ASSERT(std::ranges::all_of(parsed.wrong, [](char c) { return c >= ' ' && c <= '~'; }));
    return;
  }
  const config::Config config = configured(parsed.value);  // throws where the configuration refuses it
  RC_ASSERT(config.energy.slowdown >= 0 && config.energy.slowdown < 1);
}

}  // namespace
}  // namespace molen::slurm
