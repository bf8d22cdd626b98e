#include "store/metrics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/test_golden.h"
#include "store/lines.h"

namespace molen::store {
namespace {

StepMetrics at(std::int64_t step, std::int64_t attempt, double loss) {
  StepMetrics m;
  m.step = step;
  m.attempt = attempt;
  m.loss = loss;
  m.phase_s = {{"forward", 0.5}, {"bubble", 0.1}};
  m.energy_j = {{"cpu-package", std::nullopt}, {"gpu0", 12.5}};
  m.energy_source = {{"cpu-package", "none"}, {"gpu0", "counter"}};
  m.samples = {8 * (step - 1), 8 * step - 1};
  return m;
}

class Metrics : public ::testing::Test {
 protected:
  fs::path path_ = fs::temp_directory_path() / ("molen_metrics_" + std::to_string(::getpid()));
  void TearDown() override { fs::remove(path_); }
};

RC_GTEST_PROP(MetricsLine, RoundTripsBitForBit, (double loss, double norm, std::int64_t tokens)) {
  RC_PRE(std::isfinite(loss) && std::isfinite(norm));
  StepMetrics m = at(3, 2, loss);
  m.grad_norm = norm;
  m.tokens_total = tokens;
  const StepMetrics back = from_line(to_line(m), "test");
  RC_ASSERT(first_difference({m}, {back}).empty());
  RC_ASSERT(to_line(back) == to_line(m));
}

TEST(MetricsLine, NotMeasuredIsNull) {
  const std::string line = to_line(at(1, 1, 2.0));
  EXPECT_NE(line.find("\"mfu\":null"), std::string::npos);
  EXPECT_NE(line.find("\"cpu-package\":null"), std::string::npos);
  EXPECT_EQ(line.find("\"mfu\":0"), std::string::npos);
  EXPECT_NE(to_line(at(1, 1, std::nan(""))).find("\"loss\":null"), std::string::npos);
}

TEST(MetricsLine, SaysHowFlopsAreCounted) {
  StepMetrics m = at(1, 1, 2.0);
  EXPECT_EQ(to_line(m).find("flops_formula"), std::string::npos);  // as in older files
  EXPECT_EQ(from_line(to_line(m), "test").flops_formula, "");
  m.flops_formula = "palm";
  EXPECT_NE(to_line(m).find("\"flops_formula\":\"palm\""), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").flops_formula, "palm");
}

TEST(MetricsLine, CoverageIsThereOnlyWhereSomethingIsLeftOut) {
  const GoldenMessages golden;
  StepMetrics m = at(1, 1, 2.0);
  EXPECT_EQ(to_line(m).find("energy_coverage"), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").energy_coverage, "");
  EXPECT_EQ(to_line(m).find("policy_setting"), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").policy_setting, std::nullopt);
  m.policy_setting = 1.2e9;
  EXPECT_EQ(from_line(to_line(m), "test").policy_setting, 1.2e9);
  m.energy_coverage = "gpu only";
  EXPECT_NE(to_line(m).find("\"energy_coverage\":\"gpu only\""), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").energy_coverage, "gpu only");
  Json bad = Json::parse(to_line(m));
  bad["energy_coverage"] = 7;
  EXPECT_NOTED((void)from_line(bad.dump(), "test"), UsageError);
}

TEST(MetricsLine, SaysWhoseStepItIs) {
  StepMetrics m = at(1, 1, 2.0);
  m.history = 4;
  const Json older = Json::parse(to_line(m));
  EXPECT_FALSE(older.contains("run_id"));
  EXPECT_FALSE(older.contains("history"));
  EXPECT_EQ(from_line(older.dump(), "test").run_id, "");
  EXPECT_EQ(from_line(older.dump(), "test").history, 1);
  m.run_id = "7f3a";
  const StepMetrics back = from_line(to_line(m), "test");
  EXPECT_EQ(back.run_id, "7f3a");
  EXPECT_EQ(back.history, 4);
}

// The members of an object in any order.
nlohmann::json members_of(const Json& line) {
  return nlohmann::json::parse(line.dump());
}
nlohmann::json again(const StepMetrics& metrics) {
  return nlohmann::json::parse(to_line(metrics));
}

// Every number is read back under its own name.
TEST(MetricsLine, AllOfItComesBack) {
  const Json line = Json::parse(R"({"step":7,"attempt":2,"wall_time_s":1.5,"loss":2.5,"grad_norm":3.5,"lr":4.5,
      "loss_scale":8.0,"skipped_steps":3,"tokens_total":4,"step_s":5.5,"tokens_per_s":6.5,
      "tokens_per_s_per_device":7.5,"model_tflops_per_device":8.5,"mfu":0.25,"hfu":0.5,"memory_peak_bytes":5,
      "memory_planned_bytes":6,"data_wait_s":9.5,"phase_s":{"forward":0.5,"idle":null},
      "energy_j":{"cpu":null,"gpu0":12.5},"energy_source":{"cpu":"none","gpu0":"counter"},"j_per_token":0.75,
      "kwh_total":12.5,"kg_co2e_total":3.25,
      "samples":[8,15],"balance_loss":1.25,"z_loss":10.5,"dropped_share":0.125,"flops_formula":"palm",
      "kwh_at_end":{"value":20.5,"low":19.5,"high":22.5},"kg_co2e_at_end":{"value":5.5,"low":5.25,"high":6.5},
      "energy_coverage":"gpu only","run_id":"7f3a",
      "history":4})");
  EXPECT_EQ(Json::parse(to_line(from_json(line, "test"))), line);
  Json modelled = line;
  modelled["energy_model_j"] = Json::parse(R"({"host":{"joules":9.5,"least":7.25,"most":11.0},"gpu1":null})");
  const StepMetrics with_model = from_json(modelled, "test");
  EXPECT_EQ(again(with_model), members_of(modelled));
  EXPECT_EQ(with_model.energy_model_j.at("host")->least, 7.25);
  EXPECT_EQ(with_model.energy_j, from_json(line, "test").energy_j);
  Json resolved = line;
  resolved["energy_resolution_j"] = Json::parse(R"({"gpu0":0.5,"total":null})");
  EXPECT_EQ(again(from_json(resolved, "test")), members_of(resolved));
  EXPECT_EQ(from_json(resolved, "test").energy_resolution_j.at("gpu0"), 0.5);
  EXPECT_EQ(from_json(resolved, "test").energy_resolution_j.at("total"), std::nullopt);
  modelled["energy_model_j"]["host"].erase("most");
  EXPECT_THROW(from_json(modelled, "test"), UsageError);
  const StepMetrics m = from_json(line, "test");
  EXPECT_EQ(m.samples, (std::array<std::int64_t, 2>{8, 15}));
  EXPECT_EQ(m.energy_j.at("cpu"), std::nullopt);
  EXPECT_TRUE(std::isnan(m.phase_s.at("idle")));
  for (const Json& samples :
       {Json(7), Json::array({1}), Json::array({1, 2, 3}), Json::array({1, "2"}), Json::array({1.5, 2})}) {
    Json bad = line;
    bad["samples"] = samples;
    try {
      (void)from_json(bad, "test");
      ADD_FAILURE() << samples;
    } catch (const UsageError& e) {
      EXPECT_STREQ(e.what(), "test: samples: expected two whole numbers");
    }
  }
}

// Both fields are null when the loss is not scaled; older files have no such keys.
TEST(MetricsLine, HoldsTheLossScale) {
  const GoldenMessages golden;
  StepMetrics m = at(7, 1, 2.0);
  EXPECT_NE(to_line(m).find("\"loss_scale\":null"), std::string::npos);
  EXPECT_NE(to_line(m).find("\"skipped_steps\":null"), std::string::npos);
  Json older = Json::parse(to_line(m));
  older.erase("loss_scale");
  older.erase("skipped_steps");
  EXPECT_EQ(from_line(older.dump(), "test").loss_scale, std::nullopt);
  EXPECT_EQ(from_line(older.dump(), "test").skipped_steps, std::nullopt);
  m.loss_scale = 0x1p+40;
  m.skipped_steps = 3;
  m.grad_norm = INFINITY;  // of a skipped step
  const StepMetrics back = from_line(to_line(m), "test");
  EXPECT_NE(to_line(m).find("\"grad_norm\":null"), std::string::npos);
  EXPECT_EQ(back.loss_scale, 0x1p+40);
  EXPECT_EQ(back.skipped_steps, 3);
  EXPECT_TRUE(std::isnan(back.grad_norm));
  EXPECT_EQ(first_difference({back}, {from_line(to_line(back), "test")}), "");
  older["skipped_steps"] = "three";
  EXPECT_NOTED((void)from_line(older.dump(), "test"), UsageError);
}

TEST_F(Metrics, LastAttemptCountsAndTornLinesAreSkipped) {
  {
    LineWriter w(path_);
    for (int s = 1; s <= 3; ++s) w.append(to_line(at(s, 1, 10.0 + s)));
  }
  std::ofstream(path_, std::ios::app) << to_line(at(4, 1, 14.0)).substr(0, 40);  // a crash in the middle of a line
  LineWriter w(path_);
  EXPECT_TRUE(w.mended());
  w.append(to_line(at(3, 2, 23.0)));
  w.append(to_line(at(4, 2, 24.0)));
  const MetricsFile file = read_metrics(path_);
  ASSERT_EQ(file.steps.size(), 4u);
  EXPECT_EQ(file.torn_lines, 1);
  EXPECT_EQ(file.last_attempt, 2);
  EXPECT_EQ(file.steps[1].loss, 12.0);
  EXPECT_EQ(file.steps[2].loss, 23.0);
}

// After a power cut some file systems leave zeros where the last lines were to be.
TEST_F(Metrics, ZerosAfterTheLastLineAreATornLine) {
  const std::string zeros(5000, '\0');
  for (const std::string& tail :
       {zeros, to_line(at(3, 1, 13.0)) + zeros, to_line(at(3, 1, 13.0)).substr(0, 20) + zeros}) {
    std::ofstream(path_, std::ios::trunc) << to_line(at(1, 1, 11.0)) << "\n" << to_line(at(2, 1, 12.0)) << "\n" << tail;
    EXPECT_EQ(read_metrics(path_).torn_lines, 1);
    ASSERT_EQ(read_metrics(path_).steps.size(), 2u);
    LineWriter w(path_);
    EXPECT_TRUE(w.mended());
    w.append(to_line(at(3, 2, 23.0)));
    const MetricsFile file = read_metrics(path_);
    EXPECT_EQ(file.torn_lines, 1);
    ASSERT_EQ(file.steps.size(), 3u);
    EXPECT_EQ(file.steps[2].loss, 23.0);
  }
}

TEST_F(Metrics, NamesTheLineThatIsWrong) {
  std::ofstream(path_) << to_line(at(1, 1, 1.0)) << "\n{\"step\":\"x\"}\n";
  try {
    read_metrics(path_);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find(":2: 'step'"), std::string::npos) << e.what();
  }
}

TEST(Identical, SeesOneBit) {
  const auto a = at(1, 1, 2.0);
  auto b = at(1, 5, std::nextafter(2.0, 3.0));
  EXPECT_NE(first_difference({a}, {b}), "");
  b.loss = 2.0;
  EXPECT_EQ(first_difference({a}, {b}), "");  // attempts may differ
  EXPECT_NE(first_difference({a, a}, {b}), "");
}

TEST(Identical, SaysWhatDiffersFirst) {
  const StepMetrics a = at(3, 1, 2.0);
  const auto difference = [&](auto&& change) {
    StepMetrics b = a;
    change(b);
    return first_difference({a}, {b});
  };
  EXPECT_EQ(difference([](StepMetrics& m) { m.step = 4; }), "one has step 3 where the other has step 4");
  EXPECT_EQ(difference([](StepMetrics& m) { m.loss = 2.5; }), "step 3: loss 2 and 2.5");
  EXPECT_EQ(difference([](StepMetrics& m) { m.grad_norm = 1.5; }), "step 3: grad_norm 0 and 1.5");
  EXPECT_EQ(difference([](StepMetrics& m) { m.lr = -0.0; }), "step 3: lr 0 and -0");
  EXPECT_EQ(difference([](StepMetrics& m) { m.tokens_total = 9; }), "step 3: tokens_total 0 and 9");
  EXPECT_EQ(difference([](StepMetrics& m) { m.samples[1] = 99; }), "step 3: other samples");
  EXPECT_EQ(difference([](StepMetrics& m) { m.step_s = 99; }), "");
  EXPECT_EQ(first_difference({a}, {}), "one has 1 steps, the other 0");
}

}  // namespace
}  // namespace molen::store
