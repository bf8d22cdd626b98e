#include "manage/caps_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/clock.h"
#include "base/error.h"

namespace molen::manage {
namespace {

constexpr const char* kWhole = R"(
[manage]
period = "30 s"
hold = "2 min"
stale_after = "90 s"
forget_after = "2 d"

[[power_cap]]
name = "cluster"
nodes = ["*"]
power = "1.2 MW"
kind = "soft"
lift_at = 0.7
node_most = "10 kW"

[[power_cap]]
name = "row-3"
nodes = ["gpu03[0-9]", "login1"]
power = "80 kW"
kind = "hard"
node_most = "9 kW"
script = "/usr/local/sbin/row"
script_limit = "5 s"

[[energy_cap]]
name = "month"
nodes = ["gpu*"]
energy = "120 MWh"
period = "month"
node_most = "10 kW"
warn_at = [50, 100]
)";

std::string refusal(const std::string& text) {
  try {
    (void)parse_caps(text, "caps.toml");
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

std::string power_cap(const std::string& lines) {
  return "[[power_cap]]\nname = \"c\"\nnodes = [\"*\"]\nnode_most = \"1 kW\"\n" + lines;
}
std::string energy_cap(const std::string& lines) {
  return "[[energy_cap]]\nname = \"c\"\nnodes = [\"*\"]\nnode_most = \"1 kW\"\n" + lines;
}

TEST(CapsFile, EachKeyIsRead) {
  const Caps caps = parse_caps(kWhole, "caps.toml");
  EXPECT_EQ(caps.period, Seconds(30));
  EXPECT_EQ(caps.hold, Seconds(120));
  EXPECT_EQ(caps.stale_after, Seconds(90));
  EXPECT_EQ(caps.forget_after, Seconds(2 * 86400));
  ASSERT_EQ(caps.power.size(), 2u);
  EXPECT_EQ(caps.power[0].power, Watts(1.2e6));
  EXPECT_EQ(caps.power[0].kind, PowerCap::Kind::kSoft);
  EXPECT_EQ(caps.power[0].lift_at, 0.7);
  EXPECT_EQ(caps.power[0].node_most, Watts(10e3));
  EXPECT_FALSE(caps.power[0].script);
  EXPECT_TRUE(caps.power[0].has("anything"));
  EXPECT_TRUE(caps.power[0].named().empty());
  EXPECT_EQ(caps.power[1].kind, PowerCap::Kind::kHard);
  EXPECT_EQ(caps.power[1].script->program, "/usr/local/sbin/row");
  EXPECT_EQ(caps.power[1].script->limit, Seconds(5));
  EXPECT_TRUE(caps.power[1].has("gpu035"));
  EXPECT_TRUE(caps.power[1].has("login1"));
  EXPECT_FALSE(caps.power[1].has("gpu040"));
  EXPECT_EQ(caps.power[1].named(), std::vector<std::string>{"login1"});
  EXPECT_EQ(caps.energy.at(0).energy, Joules(120e3 * 3.6e6));
  EXPECT_EQ(caps.energy[0].warn_at, (std::vector<int>{50, 100}));
  const Caps least = parse_caps(energy_cap("energy = \"1 kWh\"\nperiod = \"72 h\"\n"), "caps.toml");
  EXPECT_EQ(least.energy[0].warn_at, (std::vector<int>{85, 90, 95})) << "as EAR has them";
  EXPECT_EQ(least.energy[0].every_s, 259200);
  EXPECT_EQ(least.period, Seconds(60));
}

TEST(CapsFile, WhatIsWrongIsNamedWithItsLine) {
  const std::string power = "power = \"1 kW\"\nkind = \"soft\"\n", energy = "energy = \"1 kWh\"\nperiod = \"day\"\n";
  const std::pair<std::string, std::string> cases[]{
      {"", "caps.toml: has neither [[power_cap]] nor [[energy_cap]]"},
      {"x = ", "caps.toml:1: "},
      {"[power]\n", "caps.toml:1: unknown key 'power'"},
      {power_cap(power + "lift = 0.5\n"), "caps.toml:7: unknown key 'power_cap.lift'"},
      {power_cap("kind = \"soft\"\n"), "power_cap.power is missing"},
      {power_cap("power = 1000\nkind = \"soft\"\n"), "caps.toml:5: power_cap.power: must be a text in quotes"},
      {power_cap("power = \"1 horse\"\nkind = \"soft\"\n"),
       "caps.toml:5: power_cap.power: '1 horse' must be a power such as \"300 W\" or \"1.2 MW\""},
      {power_cap("power = \"0 W\"\nkind = \"soft\"\n"), "power_cap.power: '0 W' must be 1 W to"},
      {power_cap("power = \"1 kW\"\nkind = \"firm\"\n"), "power_cap.kind: 'firm' must be \"soft\" or \"hard\""},
      {power_cap("power = \"1 kW\"\nkind = \"hard\"\nlift_at = 0.5\n"),
       "power_cap.lift_at: a hard cap is never lifted"},
      {power_cap(power + "lift_at = 1\n"), "power_cap.lift_at: must be a part of the cap"},
      {power_cap(power + "script = \"reboot\"\n"), "power_cap.script: 'reboot' must be an absolute path"},
      {power_cap(power + "script_limit = \"1 s\"\n"), "power_cap.script_limit: there is no script"},
      {power_cap(power + "script = \"/a\"\nscript_limit = \"1 h\"\n"),
       "power_cap.script_limit: '1 h' must be 0.1 s to 10 min"},
      {"[[power_cap]]\nname = \"a b\"\n", "caps.toml:2: power_cap.name: 'a b' must be"},
      {"[[power_cap]]\nname = \"a\"\nnodes = []\n", "power_cap.nodes: must have 1 to"},
      {"[[power_cap]]\nname = \"a\"\nnodes = [1]\n", "power_cap.nodes: must be names of nodes"},
      {"[[power_cap]]\nname = \"a\"\nnodes = \"*\"\n", "power_cap.nodes: must be a list"},
      {"[[power_cap]]\nname = \"a\"\nnodes = [\"*\"]\n", "power_cap.node_most is missing"},
      {power_cap(power) + power_cap(power), "caps.toml: two caps have the name 'c'"},
      {power_cap(power) + energy_cap(energy), "caps.toml: two caps have the name 'c'"},
      {"power_cap = 3\n", "caps.toml: 'power_cap' must be tables [[power_cap]]"},
      {energy_cap("energy = \"1 kW\"\nperiod = \"day\"\n"), "energy_cap.energy: '1 kW' must be an energy such as"},
      {energy_cap("energy = \"1 kWh\"\nperiod = \"year\"\n"),
       "energy_cap.period: 'year' must be \"day\", \"week\", \"month\""},
      {energy_cap(energy + "warn_at = [90, 85]\n"), "energy_cap.warn_at: must be percent"},
      {energy_cap(energy + "warn_at = [8.5]\n"), "energy_cap.warn_at: must be percent"},
      {energy_cap(energy + "warn_at = []\n"), "energy_cap.warn_at: has no level"},
      {"manage = 1\n" + power_cap(power), "caps.toml: 'manage' must be a table"},
      {"[manage]\nperiod = \"2 min\"\nhold = \"3 min\"\n" + power_cap(power),
       "caps.toml:3: manage.hold: 3 min is less than twice the period"},
      {"[manage]\nhold = \"2 h\"\n" + power_cap(power), "manage.hold: '2 h' must be 1 s to 1 h"},
      {"[manage]\nforget_after = \"1 min\"\n" + power_cap(power), "manage.forget_after: a node would be forgotten"},
  };
  for (const auto& [text, says] : cases)
    EXPECT_NE(refusal(text).find(says), std::string::npos) << refusal(text) << "\n" << says;
}

TEST(CapsFile, ScriptsMustBeRunnableAndNobodyElses) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen_caps_{}", ::getpid());
  fs::create_directories(folder);
  const fs::path script = folder / "script", file = folder / "caps.toml";
  std::ofstream(file) << power_cap(
      fmt::format("power = \"1 kW\"\nkind = \"soft\"\nscript = \"{}\"\n", script.string()));
  const auto says = [&] {
    try {
      (void)read_caps(file);
      return std::string("accepted");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(says().find("script of c: " + script.string() + ": no such file"), std::string::npos) << says();
  std::ofstream(script) << "#!/bin/sh\n";
  fs::permissions(script, fs::perms(0644));
  EXPECT_NE(says().find("may not be run: chmod +x"), std::string::npos) << says();
  fs::permissions(script, fs::perms(0777));
  EXPECT_NE(says().find("others may write it"), std::string::npos) << says();
  fs::permissions(script, fs::perms(0755));
  EXPECT_EQ(says(), "accepted");
  fs::remove_all(folder);
}

TEST(CapsFile, PeriodsAreThoseOfTheCalendarInUtc) {
  const auto at = [](const char* text) { return parse_time(text).value(); };
  EnergyCap cap;
  const auto period = [&](const char* time) {
    const auto [from, until] = period_of(cap, at(time));
    return utc_timestamp(from) + " " + utc_timestamp(until);
  };
  cap.every = EnergyCap::Every::kDay;
  EXPECT_EQ(period("2026-02-28T23:59:59"), "2026-02-28T00:00:00Z 2026-03-01T00:00:00Z");
  EXPECT_EQ(period("2026-03-01"), "2026-03-01T00:00:00Z 2026-03-02T00:00:00Z");
  cap.every = EnergyCap::Every::kWeek;
  EXPECT_EQ(period("2026-11-29T12:00"), "2026-11-23T00:00:00Z 2026-11-30T00:00:00Z") << "a Sunday";
  EXPECT_EQ(period("2026-11-30"), "2026-11-30T00:00:00Z 2026-12-07T00:00:00Z") << "a Monday";
  cap.every = EnergyCap::Every::kMonth;
  EXPECT_EQ(period("2028-02-29T10:00"), "2028-02-01T00:00:00Z 2028-03-01T00:00:00Z");
  EXPECT_EQ(period("2026-12-31T23:59"), "2026-12-01T00:00:00Z 2027-01-01T00:00:00Z");
  cap.every = EnergyCap::Every::kSeconds;
  cap.every_s = 259200;
  const auto [from, until] = period_of(cap, at("2026-11-29"));
  EXPECT_EQ(until - from, 259200);
  EXPECT_LE(from, at("2026-11-29"));
  EXPECT_GT(until, at("2026-11-29"));
  EXPECT_EQ(period_of(cap, until).first, until) << "they follow each other";
}

}  // namespace
}  // namespace molen::manage
