#include "store/prometheus.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::store {
namespace {

PrometheusSample sample(std::string name, double value, std::map<std::string, std::string> labels = {}) {
  return {std::move(name), "h", PrometheusType::kGauge, std::move(labels), value};
}

TEST(Prometheus, GroupsAndEscapes) {
  EXPECT_EQ(prometheus_text({{"molen_tokens_total", "Tokens \\ seen\nso far", PrometheusType::kCounter, {}, 1234},
                             {"molen_energy_joules_total",
                              "Energy \"so far\"",
                              PrometheusType::kCounter,
                              {{"run", "a\"b\\c\nd"}, {"scope", "package"}},
                              0.1},
                             {"molen_loss", "Loss", PrometheusType::kGauge, {}, NAN},
                             {"molen_energy_joules_total",
                              "Energy \"so far\"",
                              PrometheusType::kCounter,
                              {{"scope", "dram"}},
                              INFINITY}}),
            "# HELP molen_tokens_total Tokens \\\\ seen\\nso far\n# TYPE molen_tokens_total "
            "counter\nmolen_tokens_total 1234\n"
            "# HELP molen_energy_joules_total Energy \"so far\"\n# TYPE molen_energy_joules_total counter\n"
            "molen_energy_joules_total{run=\"a\\\"b\\\\c\\nd\",scope=\"package\"} "
            "0.1\nmolen_energy_joules_total{scope=\"dram\"} +Inf\n"
            "# HELP molen_loss Loss\n# TYPE molen_loss gauge\nmolen_loss NaN\n");
  EXPECT_EQ(prometheus_text({}), "");
}

TEST(Prometheus, RefusesWhatTheCollectorWouldDropTheFileFor) {
  const GoldenMessages golden;
  EXPECT_NOTED(prometheus_text({sample("1a", 0)}), Error);
  EXPECT_NOTED(prometheus_text({sample("", 0)}), Error);
  EXPECT_NOTED(prometheus_text({sample("a b", 0)}), Error);
  EXPECT_NOTED(prometheus_text({sample("a", 0, {{"x:y", ""}})}), Error);
  EXPECT_NOTED(prometheus_text({sample("a", 0, {{"__x", ""}})}), Error);
  EXPECT_NOTED(prometheus_text({sample("a", 0, {{"l", "1"}}), sample("a", 1, {{"l", "1"}})}), Error);
  EXPECT_NOTED(prometheus_text({{"joules", "", PrometheusType::kCounter, {}, 1}}), Error);
  auto other = sample("a", 1, {{"l", "2"}});
  other.help = "else";
  EXPECT_NOTED(prometheus_text({sample("a", 0), other}), Error);
}

RC_GTEST_PROP(Prometheus, OneLineASampleAndTheValueReadsBack, (const std::string& label, double value)) {
  const std::string text = prometheus_text({sample("m", value, {{"l", label}})});
  RC_ASSERT(std::count(text.begin(), text.end(), '\n') == 3);
  RC_ASSERT(std::strtod(text.c_str() + text.rfind(' '), nullptr) == value);
}

TEST(Prometheus, WritesTheFile) {
  const fs::path path = fs::temp_directory_path() / fmt::format("molen_{}.prom", ::getpid());
  write_prometheus(path, {sample("a", 1)});
  write_prometheus(path, {sample("a", 2)});
  EXPECT_EQ(read_file(path), "# HELP a h\n# TYPE a gauge\na 2\n");
  fs::remove(path);
}

}  // namespace
}  // namespace molen::store
