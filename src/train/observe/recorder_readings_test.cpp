// Tests what an attempt does with the last readings of the attempt before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "store/energy_ring.h"
#include "train/observe/test_records.h"

namespace molen::train {
namespace {

// Attempt 1 of a test saved a checkpoint at step 10, where it had used 256 J, and left a last reading.
class ReadingsOfBefore : public Records {
 protected:
  Json totals;
  std::int64_t history = 0;
  energy::EnergySoFar used;

  void first_attempt() {
    used.seconds = 30;
    used.joules = {{"cpu-package0", 256.0}};
    used.total_j = 256.0;
    used.phases = Json::parse(R"({"cpu-package0":{"joules":256,"entries":{"forward":{"joules":256}}}})");
    recorded([&](Recorder& r) {
      totals = r.totals(10, 640, used);
      history = r.identity()["history"].get<std::int64_t>();
    });
    EXPECT_EQ(totals["spent_j"]["cpu-package0"], 256.0);
    EXPECT_EQ(totals["undone_j"], 0.0);
  }
  void last_reading(std::int64_t of_history, double joules, std::int64_t ended_at) {
    store::EnergyRing ring(store::energy_ring_file(run / store::kEnergyRings, 1, 0),
                           {1, of_history, 1, {"cpu-package0"}, {}});
    ring.record(35.0, std::array{joules}, joules, ended_at);
  }
  // Runs attempt 2 from step 10 to 12, with a step of 6 J; returns the console's text.
  std::string second_attempt() {
    ::testing::internal::CaptureStdout();
    {
      Recorder r(job, *energy, 20, 18);
      r.restore_totals(totals, 10, "here");
      heads.push_back(r.take_over_readings(10));
      job.resume_from = "checkpoints/step-10";
      r.begin(10, 640, {}, "0123456789abcdef", kHardwareFlops);
      StepRecord first = record_of(11);
      first.energy.so_far_j = 6.0;
      r.step(first);
      totals = r.totals(12, 768, used);
      r.forget_earlier_readings();
    }
    return captured();
  }
  Json said_of_readings() {
    for (const Json& line : lines("energy.jsonl"))
      if (line["event"] == "last_reading") return line;
    return {};
  }
  double joules_so_far() { return lines("metrics.jsonl").back()["kwh_total"].get<double>() * 3.6e6; }
  std::vector<store::EnergyRingHead> heads;
};

// Attempt 1 was killed at 300 J: 44 J are in the kWh of attempt 2 and not in its J a token, and stay undone.
TEST_F(ReadingsOfBefore, AKilledAttemptHasUndoneJoules) {
  first_attempt();
  last_reading(history, 300.0, -1);
  const std::string said = second_attempt();
  EXPECT_EQ(heads[0].attempt, 2);
  EXPECT_EQ(heads[0].history, history);
  EXPECT_EQ(heads[0].spent_before.by_scope, (std::map<std::string, double>{{"cpu-package0", 300.0}}));
  EXPECT_EQ(heads[0].spent_before.total, 300.0);
  EXPECT_NE(said.find("failures undid steps that had consumed 44 J"), std::string::npos) << said;
  const Json last = said_of_readings();
  EXPECT_EQ(last["of_attempt"], 1);
  EXPECT_EQ(last["step"], 10);
  EXPECT_EQ(last["energy_j"]["cpu-package0"], 300.0);
  EXPECT_EQ(last["seconds"], 35.0) << "until the last reading, and not until the checkpoint at 30 s";
  EXPECT_EQ(last["ended_by_itself"], false);
  EXPECT_EQ(last["undone_j"], 44.0);
  EXPECT_DOUBLE_EQ(joules_so_far(), 256.0 + 44.0 + 6.0);
  EXPECT_EQ(totals["total_j"], 512.0);
  EXPECT_EQ(totals["spent_j"]["cpu-package0"], 556.0);
  EXPECT_EQ(totals["undone_j"], 44.0);
  EXPECT_EQ(totals["seconds"], 30.0 + 30.0);
  EXPECT_EQ(totals["spent_s"], 35.0 + 30.0);
  EXPECT_DOUBLE_EQ(totals["j_per_token"].get<double>(), 512.0 / 768);
  EXPECT_NE(energy::totals_from_json(totals, 12, "here").text().find("failures undid steps of 44 J more"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(store::energy_ring_file(run / store::kEnergyRings, 1, 0)));
}

// Attempt 1 ended by itself: the 44 J of writing its last checkpoint are used, and nothing is undone.
TEST_F(ReadingsOfBefore, AnAttemptThatEndedHasUsedAllItsJoules) {
  first_attempt();
  last_reading(history, 300.0, 10);
  const std::string said = second_attempt();
  EXPECT_EQ(said.find("failures undid"), std::string::npos) << said;
  EXPECT_EQ(said_of_readings()["ended_by_itself"], true);
  EXPECT_EQ(said_of_readings()["undone_j"], 0.0);
  EXPECT_DOUBLE_EQ(joules_so_far(), 306.0);
  EXPECT_EQ(totals["total_j"], 556.0);
  EXPECT_EQ(totals["energy_j"]["cpu-package0"], 556.0);
  EXPECT_EQ(totals["phases_j"]["cpu-package0"], (Json{{"forward", 512.0}, {"unattributed", 44.0}}));
  EXPECT_EQ(totals["seconds"], 35.0 + 30.0);
  EXPECT_EQ(totals["undone_j"], 0.0);
}

// It ended by itself after step 14, and attempt 2 goes on from step 10, because a checkpoint is damaged.
TEST_F(ReadingsOfBefore, StepsAfterAnOlderCheckpointAreUndone) {
  first_attempt();
  last_reading(history, 300.0, 14);
  second_attempt();
  EXPECT_EQ(totals["undone_j"], 44.0);
}

TEST_F(ReadingsOfBefore, AnAbandonedHistoryIsNotCounted) {
  first_attempt();
  last_reading(history + 1, 900.0, -1);
  second_attempt();
  EXPECT_EQ(heads[0].spent_before.total, 256.0);
  EXPECT_EQ(totals["undone_j"], 0.0);
  EXPECT_TRUE(said_of_readings().is_null());
}

TEST_F(ReadingsOfBefore, DamageIsSaidAndEndsNothing) {
  first_attempt();
  last_reading(history, 300.0, -1);
  write_file_atomic(run / store::kEnergyRings / "attempt-000001-host-00007.bin", "x");
  const std::string said = second_attempt();
  EXPECT_NE(said.find("host-00007.bin: no readings of meters by molen"), std::string::npos) << said;
  EXPECT_TRUE(std::ranges::any_of(lines("events.jsonl"), [](const Json& e) {
    return e["event"] == "note" && e["text"].get<std::string>().ends_with("these joules are missing");
  }));
  EXPECT_EQ(totals["undone_j"], 44.0);
}

// Joules that nobody had counted in a checkpoint have the emissions of the present site.
TEST_F(ReadingsOfBefore, EmissionsAreThoseOfTheSite) {
  job.options.cluster = "juwels-booster";
  first_attempt();
  const double kg_of_256 = totals["kg_co2e"].get<double>();
  last_reading(history, 300.0, -1);
  second_attempt();
  EXPECT_DOUBLE_EQ(lines("metrics.jsonl").back()["kg_co2e_total"].get<double>(), kg_of_256 * 306.0 / 256.0);
  EXPECT_DOUBLE_EQ(totals["kg_co2e"].get<double>(), kg_of_256 * 2.0) << "of what led somewhere";
}

// Undone joules are priced once, when the next attempt finds them; a third attempt at another site leaves them so.
TEST_F(ReadingsOfBefore, UndoneJoulesKeepTheirEmissions) {
  job.config.energy.site = "NL";
  first_attempt();
  last_reading(history, 300.0, -1);
  second_attempt();
  const double dutch = 0.268 / 3.6e6;
  EXPECT_DOUBLE_EQ(totals["spent_kg_co2e"].get<double>(), dutch * 556.0);
  EXPECT_DOUBLE_EQ(totals["kg_co2e"].get<double>(), dutch * 512.0);
  EXPECT_DOUBLE_EQ(totals["spent_site_j"].get<double>(), 556.0);
  job.config.energy.site = "FI";
  Recorder third(job, *energy, 20, 18);
  third.restore_totals(totals, 12, "here");
  third.take_over_readings(12);
  job.resume_from = "checkpoints/step-12";
  third.begin(12, 768, {}, "0123456789abcdef", kHardwareFlops);
  StepRecord r = record_of(13);
  r.energy.so_far_j = 6.0;
  third.step(r);
  EXPECT_DOUBLE_EQ(lines("metrics.jsonl").back()["kg_co2e_total"].get<double>(), dutch * 556.0 + 0.079 / 3.6e6 * 6.0);
}

}  // namespace
}  // namespace molen::train
