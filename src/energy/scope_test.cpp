#include "energy/scope.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "energy/commands.h"

namespace molen::energy {
namespace {

class StillMeter : public Meter {
 public:
  using Meter::Meter;
  Result<Reading> read() override { return Reading{}; }
};

Meters with_scopes(const std::set<std::string>& scopes) {
  Meters m;
  for (const auto& scope : scopes)
    m.meters.push_back(std::make_unique<StillMeter>(MeterInfo{"still", scope, Source::kCounter, "", Seconds(0), true}));
  return m;
}

std::set<std::string> counted_of(const std::set<std::string>& scopes) {
  Meters m = with_scopes(scopes);
  choose_counted(m);
  std::set<std::string> counted;
  for (const auto& meter : m.meters)
    if (meter->info().counted) counted.insert(meter->info().scope);
  return counted;
}

using Scopes = std::set<std::string>;

TEST(Scope, ANodeCountsInPlaceOfItsParts) {
  EXPECT_EQ(counted_of({"node", "cpu", "dram", "accel0", "gpu0", "cpu-package0", "psys"}), (Scopes{"node"}));
  EXPECT_EQ(counted_of({"cpu", "dram", "cpu-package0", "dram0", "cpu-package1-die1"}), (Scopes{"cpu", "dram"}));
  EXPECT_EQ(counted_of({"cpu-package0", "dram0", "gpu0", "gpu1"}), (Scopes{"cpu-package0", "dram0", "gpu0", "gpu1"}));
  EXPECT_EQ(counted_of({"accel0", "gpu0", "gpu1", "cpu-package0"}), (Scopes{"accel0", "cpu-package0"}));
}

TEST(Scope, PsysGivesWayToPackages) {
  EXPECT_EQ(counted_of({"psys", "cpu-package0"}), (Scopes{"cpu-package0"}));
  EXPECT_EQ(counted_of({"psys", "cpu-package0", "dram0"}), (Scopes{"cpu-package0", "dram0"}));
  EXPECT_EQ(counted_of({"psys", "dram0"}), (Scopes{"psys"}));
  EXPECT_EQ(counted_of({"psys", "gpu0"}), (Scopes{"gpu0", "psys"}));
}

// Grace Hopper: NVML, RAPL's names for Grace and the power meters of the board see the same joules.
TEST(Scope, AModuleHoldsTheScopesOfItsSocket) {
  EXPECT_EQ(counted_of({"module0", "grace0", "cpu-package0", "sysio0", "gpu0", "dram0"}), (Scopes{"module0"}));
  EXPECT_EQ(counted_of({"module0", "grace1", "cpu-package1-die0"}), (Scopes{"module0", "grace1"}));
  EXPECT_EQ(counted_of({"grace0", "cpu-package0", "sysio0", "gpu0"}), (Scopes{"grace0", "gpu0"}));
  EXPECT_FALSE(contains("module1", "cpu-package11")) << "another socket's";
}

TEST(Scope, PartsAreThoseOfTheMachine) {
  EXPECT_EQ(parts_of("node"), (Scopes{"cpu", "dram", "gpu"}));
  EXPECT_EQ(parts_of("module3"), (Scopes{"cpu", "dram", "gpu"}));
  EXPECT_EQ(parts_of("grace0"), (Scopes{"cpu", "dram"}));
  EXPECT_EQ(parts_of("accel2"), (Scopes{"gpu"}));
  EXPECT_EQ(parts_of("cpu"), (Scopes{"cpu"}));
  EXPECT_EQ(parts_of("dram"), (Scopes{"dram"}));
  EXPECT_EQ(parts_of("sysio0"), Scopes{});
  EXPECT_EQ(parts_of("modules"), Scopes{});
  EXPECT_EQ(parts_of("cpufreq"), Scopes{});
}

const std::vector<std::string>& all_scopes() {
  static const std::vector<std::string> all{
      "node",   "psys",   "cpu",     "cpu-package0", "cpu-package1", "dram",  "dram0",  "gpu0",   "gpu1",
      "accel0", "accel1", "module0", "grace0",       "module1",      "dram1", "sysio0", "grace1", "cpu-package0-die1"};
  return all;
}

RC_GTEST_PROP(Scope, ContainmentIsAnOrder, ()) {
  const auto scope = rc::gen::elementOf(all_scopes());
  const std::string a = *scope, b = *scope, c = *scope;
  RC_ASSERT(!contains(a, a));
  RC_ASSERT(!(contains(a, b) && contains(b, a)));
  RC_ASSERT(!(contains(a, b) && contains(b, c)) || contains(a, c));
  if (contains(a, b)) {
    const auto outer = parts_of(a);
    for (const auto& part : parts_of(b)) RC_ASSERT(outer.contains(part));
  }
}

RC_GTEST_PROP(Scope, ASumHasNoScopeTwiceAndLeavesNoneOut, (const std::set<std::size_t>& picks)) {
  Scopes read;
  for (const std::size_t p : picks) read.insert(all_scopes()[p % all_scopes().size()]);
  const Scopes counted = counted_of(read);
  for (const auto& a : counted)
    for (const auto& b : counted) RC_ASSERT(!contains(a, b));
  for (const auto& scope : read) {
    const bool covered =
        counted.contains(scope) ||
        std::any_of(counted.begin(), counted.end(), [&](const std::string& outer) { return contains(outer, scope); });
    RC_ASSERT(covered || scope == "psys");
  }
}

TEST(Scope, TheListSaysWhatAScopeIsPartOf) {
  Meters m = with_scopes({"node", "gpu0", "psys"});
  choose_counted(m);
  EXPECT_NE(list_text(m).find("(not summed: part of node)"), std::string::npos) << list_text(m);
  Meters packages = with_scopes({"psys", "cpu-package0"});
  choose_counted(packages);
  EXPECT_NE(list_text(packages).find("(not summed: its parts are)"), std::string::npos) << list_text(packages);
}

TEST(Scope, AScopeWithoutReadingsContainsNothing) {
  Meters m = with_scopes({"gpu0"});
  m.meters.push_back(std::make_unique<NullMeter>("node", "no permission"));
  choose_counted(m);
  EXPECT_TRUE(m.meters[0]->info().counted);
  EXPECT_FALSE(m.meters[1]->info().counted);
}

}  // namespace
}  // namespace molen::energy
