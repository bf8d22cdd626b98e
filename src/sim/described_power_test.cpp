#include "sim/described_power.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace molen::sim {
namespace {

std::string error_of(const std::string& model, const std::optional<std::string>& cluster) {
  try {
    power_figures(model, cluster, "run.toml:3: energy.model");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(DescribedPower, FiguresOfADescriptionKeepTheirSpreadAndSource) {
  const cluster::Cluster c = cluster::find("snellius-h100");
  const auto figures = power_figures("on", "snellius-h100", "energy.model");
  ASSERT_TRUE(figures && figures->of_each_gpu);
  const auto idle = figures->of_each_gpu->curve.watts_at(0.0), peak = figures->of_each_gpu->curve.watts_at(1.0);
  EXPECT_EQ(idle.value, c.device.idle_power.value);
  EXPECT_EQ(peak.value, c.device.peak_power.value);
  EXPECT_DOUBLE_EQ(idle.least, c.device.idle_power.value * (1 - c.device.idle_power.spread));
  EXPECT_DOUBLE_EQ(peak.most, c.device.peak_power.value * (1 + c.device.peak_power.spread));
  EXPECT_NE(figures->of_each_gpu->source.find(c.device.peak_power.source), std::string::npos);
  ASSERT_EQ(figures->by_cpus.size(), 1u);
  EXPECT_EQ(figures->by_cpus[0].scope, "host");
  EXPECT_EQ(figures->by_cpus[0].curve.watts_at(0.0).value, c.node.host_power.value);
  EXPECT_EQ(figures->by_cpus[0].curve.watts_at(1.0).value, c.node.host_power.value);
}

TEST(DescribedPower, ACalibrationComesBeforeADescription) {
  const fs::path file = fs::temp_directory_path() / ("molen_power_" + std::to_string(::getpid()) + ".json");
  write_file_atomic(file,
                    R"({"power_format": 1, "host": "n1", "created": "2026-01-01T00:00:00Z", "processor": "P", "cpus": 4,
    "scopes": {"cpu-package0": {"meter": "rapl-perf: x", "source": "counter",
      "points": [{"utilisation": 0, "watts": 40, "least_w": 39, "most_w": 41}]}}})");
  const auto alone = power_figures(file.string(), std::nullopt, "energy.model");
  EXPECT_EQ(alone->by_cpus.at(0).scope, "cpu-package0");
  EXPECT_EQ(alone->processor, "P");
  EXPECT_FALSE(alone->of_each_gpu);
  const auto both = power_figures(file.string(), "snellius-h100", "energy.model");
  EXPECT_EQ(both->by_cpus.size(), 1u) << "what was measured, and not the assumption beside it";
  EXPECT_TRUE(both->of_each_gpu) << "which the file lacks";
  EXPECT_NE(error_of("on", file.string()).find("a calibration of times without any power"), std::string::npos);
  fs::remove(file);
}

TEST(DescribedPower, NothingWithoutFigures) {
  EXPECT_FALSE(power_figures("off", "snellius-h100", "energy.model"));
  EXPECT_FALSE(power_figures("off", std::nullopt, "energy.model"));
  for (const auto& error : {error_of("on", std::nullopt), error_of("no such file", std::nullopt)}) {
    EXPECT_EQ(error.rfind("run.toml:3: energy.model: ", 0), 0u) << error;
    EXPECT_NE(error.find("molen energy calibrate"), std::string::npos) << error;
  }
  EXPECT_NE(error_of("on", "snelius-h100").find("snellius-h100"), std::string::npos) << "the nearest name";
}

}  // namespace
}  // namespace molen::sim
