#include "store/metrics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
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
  EXPECT_EQ(to_line(m).find("flops_formula"), std::string::npos);  // as older files
  EXPECT_EQ(from_line(to_line(m), "test").flops_formula, "");
  m.flops_formula = "palm";
  EXPECT_NE(to_line(m).find("\"flops_formula\":\"palm\""), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").flops_formula, "palm");
}

TEST(MetricsLine, CoverageIsThereOnlyWhereSomethingIsLeftOut) {
  StepMetrics m = at(1, 1, 2.0);
  EXPECT_EQ(to_line(m).find("energy_coverage"), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").energy_coverage, "");
  m.energy_coverage = "gpu only";
  EXPECT_NE(to_line(m).find("\"energy_coverage\":\"gpu only\""), std::string::npos);
  EXPECT_EQ(from_line(to_line(m), "test").energy_coverage, "gpu only");
  Json bad = Json::parse(to_line(m));
  bad["energy_coverage"] = 7;
  EXPECT_THROW((void)from_line(bad.dump(), "test"), UsageError);
}

// Of a loss that is not scaled both are null; older files have no such keys.
TEST(MetricsLine, HoldsTheLossScale) {
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
  m.grad_norm = INFINITY;  // of a step that was skipped
  const StepMetrics back = from_line(to_line(m), "test");
  EXPECT_NE(to_line(m).find("\"grad_norm\":null"), std::string::npos);
  EXPECT_EQ(back.loss_scale, 0x1p+40);
  EXPECT_EQ(back.skipped_steps, 3);
  EXPECT_TRUE(std::isnan(back.grad_norm));
  EXPECT_EQ(first_difference({back}, {from_line(to_line(back), "test")}), "");
  older["skipped_steps"] = "three";
  EXPECT_THROW((void)from_line(older.dump(), "test"), UsageError);
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

}  // namespace
}  // namespace molen::store
