#include "energy/coverage.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_golden.h"
#include "energy/accountant.h"
#include "energy/test_machine.h"
#include "energy/totals.h"

namespace molen::energy {
namespace {

struct Script {
  Result<Reading> reading = Reading{Joules(0), 0};
};

class ScriptMeter : public Meter {
 public:
  ScriptMeter(MeterInfo info, Script* script) : Meter(std::move(info)), script_(script) {}
  Result<Reading> read() override { return script_ ? script_->reading : Result<Reading>(Reading{}); }

 private:
  Script* script_;
};

void put(Meters& m, const std::string& scope, bool counted = true, Script* script = nullptr) {
  m.meters.push_back(
      std::make_unique<ScriptMeter>(MeterInfo{"fake", scope, Source::kCounter, "", Seconds(0), counted}, script));
}

using Counts = std::map<std::string, std::int64_t>;

TEST(Coverage, NamesWhatIsNotMeasured) {
  Meters m;
  put(m, "gpu0");
  EXPECT_EQ(coverage_of(m, true).missing, (Counts{{"cpu", 1}, {"dram", 1}}));
  EXPECT_EQ(coverage_of(m, true).partial(), "gpu only");
  put(m, "cpu-package0");
  EXPECT_EQ(coverage_of(m, true).partial(), "cpu+gpu only");
  put(m, "dram0");
  EXPECT_EQ(coverage_of(m, true).partial(), "");
  EXPECT_EQ(coverage_of(Meters{}, false).partial(), "nothing measured");
}

TEST(Coverage, AGpuWithoutAMeterIsMissingOnlyWhereThereIsOne) {
  Meters m;
  put(m, "cpu-package0");
  put(m, "dram0");
  m.unavailable.push_back({"nvml", "gpu", "no driver"});
  EXPECT_EQ(coverage_of(m, false).partial(), "");
  EXPECT_EQ(coverage_of(m, true).partial(), "cpu+dram only");
  m.unavailable.push_back({"nvml", "gpu0", "no permission"});  // NVML lists a GPU, so the host has one
  EXPECT_EQ(coverage_of(m, false).missing, (Counts{{"gpu", 1}}));
}

TEST(Coverage, OneUnreadScopeOfAPartIsNamed) {
  Meters m;
  put(m, "cpu-package0");
  put(m, "dram0");
  put(m, "gpu0");
  m.meters.push_back(std::make_unique<NullMeter>("gpu3", "lost from the bus"));
  m.unavailable.push_back({"rapl-perf", "cpu-package1", "no permission"});
  m.unavailable.push_back({"rapl-perf", "cpu-package", "no events"});          // powercap read the packages
  m.unavailable.push_back({"rapl-powercap", "cpu-package0", "read already"});  // another meter read it
  EXPECT_EQ(coverage_of(m, true).missing, (Counts{{"cpu-package1", 1}, {"gpu3", 1}}));
  EXPECT_EQ(coverage_of(m, true).partial(), "without cpu-package1, gpu3");
}

TEST(Coverage, PsysHoldsProcessorAndMemory) {
  Meters m;
  put(m, "psys");
  m.unavailable.push_back({"rapl-powercap", "cpu-package0", "no permission"});
  EXPECT_EQ(coverage_of(m, false).partial(), "");
  Meters both;  // packages are read: psys is not summed, and memory is in no sum
  put(both, "psys", false);
  put(both, "cpu-package0");
  EXPECT_EQ(coverage_of(both, false).partial(), "cpu only");
}

TEST(Coverage, HostsAddUp) {
  Meters a, b;
  put(a, "cpu-package0");
  put(a, "dram0");
  put(b, "cpu-package0");
  Coverage c = coverage_of(a, false);
  c += coverage_of(b, false);
  EXPECT_EQ(c.hosts, 2);
  EXPECT_EQ(c.scopes, (Counts{{"cpu-package0", 2}, {"dram0", 1}}));
  EXPECT_EQ(c.partial(), "without part of dram");
  const Coverage back = coverage_from_json(parse_json(to_json(c).dump(), "x"), "x");
  EXPECT_EQ(to_json(back), to_json(c));
}

TEST(Coverage, IsReadAsItWasWritten) {
  const Coverage c{3, {{"cpu-package0", 3}, {"gpu1", 2}}, {"cpu-package0"}, {{"dram", 3}}};
  const Json json = to_json(c);
  EXPECT_EQ(
      json,
      Json::parse(
          R"({"hosts":3,"scopes":{"cpu-package0":3,"gpu1":2},"summed":["cpu-package0"],"missing":{"dram":3},"partial":")" +
          c.partial() + "\"}"));
  const Coverage read = coverage_from_json(json, "test");
  EXPECT_EQ(read.hosts, c.hosts);
  EXPECT_EQ(read.scopes, c.scopes);
  EXPECT_EQ(read.summed, c.summed);
  EXPECT_EQ(read.missing, c.missing);
}

TEST(Totals, HostsAreTheMostAtATime) {
  RunTotals t;
  for (const std::int64_t hosts : {2, 5, 3}) t = add(t, 1, 10, {}, Coverage{hosts, {}, {}, {}});
  EXPECT_EQ(t.hosts, 5);
  EXPECT_EQ(t.steps, 3);
  EXPECT_EQ(t.tokens, 30);
}

TEST(Coverage, FindsGpusOfThisProcess) {
  FakeMachine f;
  EXPECT_FALSE(has_gpus(f.machine, {}));
  f.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: x\n");
  EXPECT_TRUE(has_gpus(f.machine, {}));
  EXPECT_TRUE(has_gpus(f.machine, {"0,1", ""}));
  EXPECT_FALSE(has_gpus(f.machine, {"", {}})) << "all hidden";
  EXPECT_FALSE(has_gpus(f.machine, {"-1", {}}));
  FakeMachine amd;
  const std::string node = "sys/class/kfd/kfd/topology/nodes/";
  amd.write(node + "0/gpu_id", "0\n");
  amd.write(node + "0/properties", "cpu_cores_count 64\nsimd_count 0\n");
  EXPECT_FALSE(has_gpus(amd.machine, {}));
  amd.write(node + "2/gpu_id", "5510\n");
  amd.write(node + "2/properties", "cpu_cores_count 16\nsimd_count 8\n");
  EXPECT_FALSE(has_gpus(amd.machine, {})) << "within a processor";
  amd.write(node + "3/properties", "cpu_cores_count 0\nsimd_count 440\n");
  EXPECT_FALSE(has_gpus(amd.machine, {})) << "without an id";
  amd.write(node + "1/gpu_id", "51211\n");
  amd.write(node + "1/properties", "cpu_cores_count 0\nsimd_count 440\n");
  EXPECT_TRUE(has_gpus(amd.machine, {}));
  EXPECT_TRUE(has_gpus(amd.machine, {"", "0"})) << "each maker has its list";
  EXPECT_FALSE(has_gpus(amd.machine, {{}, ""}));
}

TEST(SoFar, KeepsWhatWasReadAndNamesWhatIsShort) {
  Script cpu, gpu, still;
  Meters m;
  put(m, "cpu-package0", true, &cpu);
  put(m, "gpu0", true, &gpu);
  put(m, "dram0", true, &still);
  Accountant a(std::move(m));
  cpu.reading = Reading{Joules(5), 0};
  gpu.reading = Reading{Joules(7), 0};
  (void)a.end_step();
  cpu.reading = Reading{Joules(9), 0};
  gpu.reading = Failure{"gone"};
  EnergySoFar e = a.so_far();
  EXPECT_EQ(e.joules, (std::map<std::string, double>{{"cpu-package0", 9.0}, {"gpu0", 7.0}}));
  EXPECT_EQ(e.total_j, 16.0);
  EXPECT_EQ(e.lost, (Counts{{"dram0", 1}, {"gpu0", 1}})) << "one is gone, one has not moved";
  gpu.reading = Reading{Joules(11), 0};
  still.reading = Reading{Joules(1), 0};
  e = a.so_far();
  EXPECT_TRUE(e.lost.empty()) << "counters go on while they cannot be read";
  EXPECT_EQ(e.total_j, 21.0);
  cpu.reading = Reading{Joules(10), 1};
  EXPECT_EQ(a.so_far().lost, (Counts{{"cpu-package0", 1}}));
}

Coverage host(const std::set<std::string>& scopes) {
  Meters m;
  for (const auto& scope : scopes) put(m, scope);
  return coverage_of(m, false);
}

EnergySoFar used(double seconds, const std::map<std::string, double>& joules) {
  EnergySoFar e;
  e.seconds = seconds;
  e.joules = joules;
  for (const auto& [scope, j] : joules) e.total_j = e.total_j.value_or(0.0) + j;
  return e;
}

TEST(Totals, AttemptsAddUp) {
  const auto all = host({"cpu-package0", "dram0"});
  const RunTotals one = add({}, 3, 300, used(2, {{"cpu-package0", 40}, {"dram0", 5}}), all);
  const RunTotals back = totals_from_json(parse_json(to_json(one).dump(), "x"), 3, "x");
  EXPECT_EQ(to_json(back), to_json(one));
  const RunTotals two = add(back, 5, 500, used(4, {{"cpu-package0", 80}, {"dram0", 10}}), all);
  EXPECT_EQ(two.steps, 8);
  EXPECT_EQ(two.tokens, 800);
  EXPECT_EQ(two.seconds, 6.0);
  EXPECT_EQ(two.total_j, 135.0);
  EXPECT_EQ(two.partial(), "");
  EXPECT_EQ(two.text(), "8 steps, 800 tokens, 6.00 s, 135 J, 0.1688 J/token");
}

TEST(Totals, PhasesOfAttemptsAddUp) {
  const auto all = host({"cpu-package0"});
  EnergySoFar first = used(2, {{"cpu-package0", 40}}), second = first;
  first.phases = Json::parse(R"({"cpu-package0":{"entries":{"forward":{"joules":30},"base":{"joules":10}}}})");
  second.phases = Json::parse(R"({"cpu-package0":{"entries":{"forward":{"joules":5}}},"dram0":{"entries":{}}})");
  const RunTotals one = totals_from_json(to_json(add({}, 3, 300, first, all)), 3, "x");
  const RunTotals two = add(one, 5, 500, second, all);
  const std::map<std::string, std::map<std::string, double>> want{
      {"cpu-package0", {{"forward", 35.0}, {"base", 10.0}}}};
  EXPECT_EQ(two.phases_j, want);
  Json old = to_json(one);
  old.erase("phases_j");
  EXPECT_TRUE(totals_from_json(old, 3, "x").phases_j.empty()) << "a checkpoint from before phases had joules";
}

// Emissions of a run are known if each attempt that measured energy knew its site's.
TEST(Totals, EmissionsOfAttemptsAddUp) {
  const auto all = host({"cpu-package0"});
  EnergySoFar known = used(2, {{"cpu-package0", 40}}), unknown = known;
  known.at_site.kg_co2e = 0.5;
  const RunTotals one = totals_from_json(to_json(add({}, 3, 300, known, all)), 3, "x");
  EXPECT_EQ(one.kg_co2e, 0.5);
  EXPECT_EQ(add(one, 5, 500, known, all).kg_co2e, 1.0);
  EXPECT_EQ(add(one, 5, 500, unknown, all).kg_co2e, std::nullopt);
  EXPECT_EQ(add(add({}, 3, 300, unknown, all), 5, 500, known, all).kg_co2e, std::nullopt);
  EXPECT_EQ(add(one, 0, 0, {}, all).kg_co2e, 0.5) << "an attempt that measured nothing";
  const RunTotals both = add(one, 5, 500, known, all), part = add(one, 5, 500, unknown, all);
  EXPECT_EQ(both.spent_at_site.kg_co2e, 1.0);
  EXPECT_EQ(part.spent_at_site.kg_co2e, std::nullopt);
  EXPECT_EQ(totals_from_json(to_json(both), both.steps, "here").spent_at_site.kg_co2e, 1.0);
  Json older = to_json(both);
  older.erase("spent_kg_co2e");
  EXPECT_EQ(totals_from_json(older, both.steps, "here").spent_at_site.kg_co2e, 1.0) << "where nothing was undone";
}

TEST(Totals, WhatOneAttemptLackedStaysMissing) {
  const RunTotals none = add({}, 3, 300, {}, coverage_of(Meters{}, false));
  EXPECT_EQ(none.total_j, std::nullopt);
  EXPECT_NE(none.text().find("energy not measured"), std::string::npos);
  EXPECT_TRUE(to_json(none)["total_j"].is_null());
  EnergySoFar short_of = used(4, {{"cpu-package0", 80}, {"dram0", 10}});
  const RunTotals two = add(none, 5, 500, short_of, host({"cpu-package0", "dram0"}));
  EXPECT_EQ(two.partial(), "without part of cpu, part of dram");
  short_of.lost["dram0"] = 1;
  EXPECT_EQ(add({}, 5, 500, short_of, host({"cpu-package0", "dram0"})).partial(), "without dram0 (readings lost)");
  EXPECT_EQ(add({}, 5, 500, used(4, {{"cpu-package0", 80}}), host({"cpu-package0"})).text(),
            "5 steps, 500 tokens, 4.00 s, 80 J (partial: cpu only), 0.16 J/token");
}

TEST(Totals, ComeBackAsTheyWere) {
  RunTotals t = add({}, 3, 300, used(2, {{"cpu-package0", 40}}), host({"cpu-package0"}));
  t.missing = {{"dram", 2}, {"gpu1", 1}};
  const Json j = to_json(t);
  EXPECT_EQ(j["missing"], (Json{{"dram", 2}, {"gpu1", 1}}));
  EXPECT_EQ(to_json(totals_from_json(j, 3, "x")), j);
}

TEST(Totals, ACheckpointWithoutThemStartsTheCountThere) {
  const RunTotals t = totals_from_json(parse_json("{\"attempts\":2}", "x"), 12, "x");
  EXPECT_EQ(t.first_step, 13);
  EXPECT_EQ(t.steps, 0);
  EXPECT_EQ(add(t, 1, 10, {}, {}).text().rfind("since step 13: 1 step, ", 0), 0u);
}

TEST(Totals, RefusesHostileRecords) {
  const GoldenMessages golden;
  const Json good = to_json(add({}, 3, 300, used(2, {{"cpu-package0", 40}}), host({"cpu-package0"})));
  EXPECT_NO_THROW((void)totals_from_json(good, 3, "x"));
  EXPECT_NOTED((void)totals_from_json(good, 4, "x"), UsageError) << "steps of another checkpoint";
  EXPECT_NOTED((void)totals_from_json(Json::array(), 3, "x"), UsageError);
  for (const char* key :
       {"first_step", "steps", "tokens", "seconds", "energy_j", "phases_j", "total_j", "hosts", "summed", "missing"})
    for (const Json& bad : {Json(-1), Json("7"), Json(1e300), Json::array({1}), Json::parse("{\"a\":-1}")}) {
      if ((std::string(key) == "seconds" || std::string(key) == "total_j") && bad == Json(1e300)) continue;
      Json j = good;
      j[key] = bad;
      EXPECT_NOTED((void)totals_from_json(j, 3, "x"), UsageError) << key << " " << bad;
    }
  Json j = good;
  for (const char* bad : {R"({"gpu0":7})", R"({"gpu0":{"forward":-1}})"}) {
    j["phases_j"] = Json::parse(bad);
    EXPECT_NOTED((void)totals_from_json(j, 3, "x"), UsageError) << bad;
  }
  j = good;
  j.erase("tokens");
  EXPECT_NOTED((void)totals_from_json(j, 3, "x"), UsageError);
}

}  // namespace
}  // namespace molen::energy
