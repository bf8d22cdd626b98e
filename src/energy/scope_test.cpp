#include "energy/scope.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "energy/commands.h"
#include "energy/coverage.h"

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
  EXPECT_EQ(counted_of({"psys", "grace0"}), (Scopes{"grace0"}));
}

TEST(Scope, AModuleHoldsTheScopesOfItsSocket) {
  EXPECT_EQ(counted_of({"module0", "grace0", "cpu-package0", "sysio0", "dram0"}), (Scopes{"module0"}));
  EXPECT_EQ(counted_of({"module0", "grace1", "cpu-package1-die0"}), (Scopes{"module0", "grace1"}));
  EXPECT_EQ(counted_of({"grace0", "cpu-package0", "sysio0", "gpu0"}), (Scopes{"grace0", "gpu0"}));
  EXPECT_EQ(counted_of({"module0", "gpu0"}), (Scopes{"module0", "gpu0"})) << "a GPU of PCIe is no part of a module";
  EXPECT_FALSE(contains("module1", "cpu-package11")) << "another socket's";
}

// NVML, RAPL's names for Grace and the power meters of the board may see the same joules.
TEST(Scope, ASuperchipMayHoldAnySocket) {
  EXPECT_EQ(counted_of({"superchip0", "module3", "grace3", "cpu-package3", "gpu1", "cpu"}), (Scopes{"superchip0"}));
  EXPECT_EQ(counted_of({"superchip0", "superchip1"}), (Scopes{"superchip0", "superchip1"}));
}

TEST(Scope, APackageHoldsItsDies) {
  EXPECT_EQ(counted_of({"cpu-package0", "cpu-package0-die1", "cpu-package1-die0"}),
            (Scopes{"cpu-package0", "cpu-package1-die0"}));
}

TEST(Scope, PartsAreThoseOfTheMachine) {
  EXPECT_EQ(parts_of("node"), (Scopes{"cpu", "dram", "gpu"}));
  EXPECT_EQ(parts_of("superchip3"), (Scopes{"cpu", "dram", "gpu"}));
  EXPECT_EQ(parts_of("module3"), (Scopes{"cpu", "dram"})) << "a module of two processors has no GPU";
  EXPECT_EQ(parts_of("grace0"), (Scopes{"cpu", "dram"}));
  EXPECT_EQ(parts_of("accel2"), (Scopes{"gpu"}));
  EXPECT_EQ(parts_of("cpu"), (Scopes{"cpu"}));
  EXPECT_EQ(parts_of("dram"), (Scopes{"dram"}));
  EXPECT_EQ(parts_of("sysio0"), Scopes{});
  EXPECT_EQ(parts_of("rest"), Scopes{});
  EXPECT_EQ(parts_of("modules"), Scopes{});
  EXPECT_EQ(parts_of("cpufreq"), Scopes{});
}

// The parts that each scope measures on a machine of two sockets of two dies each, with an MI250X in socket 0 (gpu0 and
// gpu1 are its two). Superchips belong to another machine (ASuperchipMayHoldAnySocket).
const std::map<std::string, Scopes>& leaves() {
  static const Scopes cpu0{"die 0", "die 1"}, cpu1{"die 2", "die 3"}, memory0{"memory 0"}, memory1{"memory 1"};
  static const Scopes gpus{"gpu 0", "gpu 1"};
  const auto all = [](std::initializer_list<Scopes> parts) {
    Scopes sum;
    for (Scopes part : parts) sum.merge(part);
    return sum;
  };
  static const std::map<std::string, Scopes> leaves{
      {"node", all({cpu0, cpu1, memory0, memory1, gpus, {"fans", "io 0", "io 1"}})},
      {"psys", all({cpu0, cpu1, memory0, memory1})},
      {"cpu", all({cpu0, cpu1})},
      {"dram", all({memory0, memory1})},
      {"cpu-package0", cpu0},
      {"cpu-package1", cpu1},
      {"cpu-package0-die0", {"die 0"}},
      {"cpu-package0-die1", {"die 1"}},
      {"dram0", memory0},
      {"dram1", memory1},
      {"module0", all({cpu0, memory0, {"io 0"}})},
      {"module1", all({cpu1, memory1, {"io 1"}})},
      {"grace0", all({cpu0, memory0, {"io 0"}})},
      {"grace1", all({cpu1, memory1, {"io 1"}})},
      {"sysio0", {"io 0"}},
      {"rest", {"fans"}},
      {"accel0", gpus},
      {"gpu0", {"gpu 0"}},
      {"gpu1", {"gpu 1"}},
  };
  return leaves;
}

RC_GTEST_PROP(Scope, ASumHasNoJouleTwice, (const std::set<std::uint8_t>& picks)) {
  Scopes read, summed, leaf;
  for (const std::uint8_t p : picks) read.insert(std::next(leaves().begin(), p % leaves().size())->first);
  std::size_t all = 0;
  for (const auto& scope : counted_of(read)) {
    summed.insert(scope);
    all += leaves().at(scope).size();
    leaf.insert(leaves().at(scope).begin(), leaves().at(scope).end());
  }
  RC_ASSERT(all == leaf.size());
  RC_ASSERT(read.empty() == summed.empty());
  for (const auto& scope : read) {  // and nothing that could be added
    const auto& parts = leaves().at(scope);
    RC_ASSERT(summed.contains(scope) ||
              std::any_of(parts.begin(), parts.end(), [&](const auto& p) { return leaf.contains(p); }));
  }
}

TEST(Scope, RelationsAreThoseOfWhatIsMeasured) {
  for (const auto& [a, x] : leaves())
    for (const auto& [b, y] : leaves()) {
      if (a == b) continue;
      const bool shared = std::any_of(y.begin(), y.end(), [&, &of_a = x](const auto& p) { return of_a.contains(p); });
      EXPECT_EQ(overlap(a, b), shared) << a << " " << b;
      const bool whole = std::includes(x.begin(), x.end(), y.begin(), y.end());
      const bool same_name_twice =
          a.rfind("grace", 0) == 0 && b.rfind("module", 0) == 0;  // a module has losses beside it
      // The number of an accelerator does not tell its GPUs.
      if (a != "accel0") {
        EXPECT_EQ(contains(a, b), whole && !same_name_twice) << a << " " << b;
      }
    }
}

TEST(Scope, TheListSaysWhatAScopeIsPartOf) {
  Meters m = with_scopes({"node", "gpu0", "psys"});
  choose_counted(m);
  EXPECT_NE(list_text(m).find("(not summed: part of node)"), std::string::npos) << list_text(m);
  Meters packages = with_scopes({"psys", "cpu-package0"});
  choose_counted(packages);
  EXPECT_NE(list_text(packages).find("(not summed: shares a part with cpu-package0)"), std::string::npos)
      << list_text(packages);
}

TEST(Scope, AModuleThatIsLostIsMissing) {
  Meters m = with_scopes({"module0", "module1"});
  m.unavailable.push_back({"hwmon", "module2", "no permission"});
  choose_counted(m);
  EXPECT_EQ(coverage_of(m, false).partial(), "without module2");
  Meters accelerators = with_scopes({"accel0", "cpu", "dram"});
  accelerators.unavailable.push_back({"cray", "accel1", "lost"});
  choose_counted(accelerators);
  EXPECT_EQ(coverage_of(accelerators, true).partial(), "without accel1");
}

TEST(Scope, AScopeWithoutReadingsContainsNothing) {
  Meters m = with_scopes({"gpu0"});
  m.meters.push_back(std::make_unique<NullMeter>("node", "no permission"));
  choose_counted(m);
  EXPECT_TRUE(m.meters[0]->info().counted);
  EXPECT_FALSE(m.meters[1]->info().counted);
}

TEST(Scope, NumbersOfGpus) {
  using Numbers = std::vector<int>;
  EXPECT_EQ(gpus_of("gpu3"), Numbers{3});
  EXPECT_EQ(gpus_of("superchip12"), Numbers{12});
  EXPECT_EQ(gpus_of("gpu10+11"), (Numbers{10, 11}));
  for (const char* scope : {"gpu", "accel0", "cpu-package1", "node", "module0"}) EXPECT_EQ(gpus_of(scope), Numbers{});
}

}  // namespace
}  // namespace molen::energy
