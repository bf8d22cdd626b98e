#include "serve/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "serve/chart.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

class Report : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }
  std::string page() {
    write_report(dir_, dir_ / "report.html");
    return read_file(dir_ / "report.html");
  }
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_report_{}", ::getpid());
};

store::StepMetrics step(std::int64_t s, double loss) {
  store::StepMetrics m;
  m.step = s;
  m.loss = loss;
  m.step_s = 0.5;
  m.tokens_per_s = 1000;
  m.phase_s = {{"forward", 0.2}, {"backward", 0.25}, {"bubble", 0.05}};
  return m;
}

TEST_F(Report, EmptyOneAndNonFinite) {
  std::ofstream(dir_ / "metrics.jsonl") << "";
  EXPECT_NE(page().find("nothing measured"), std::string::npos);
  std::ofstream(dir_ / "metrics.jsonl") << store::to_line(step(1, 3.0)) << "\n";
  EXPECT_NE(page().find("<circle"), std::string::npos);
  std::ofstream(dir_ / "metrics.jsonl") << store::to_line(step(1, 3.0)) << "\n" << store::to_line(step(2, std::nan(""))) << "\n" << store::to_line(step(3, 2.0)).substr(0, 30);
  const std::string html = page();
  for (const char* bad : {"nan ", " nan", ">nan", "inf ", ">inf", "=nan", "=inf"}) EXPECT_EQ(html.find(bad), std::string::npos) << bad;
  EXPECT_NE(html.find("cut short"), std::string::npos);
}

TEST_F(Report, EscapesWhatTheUserWrote) {
  std::ofstream(dir_ / "metrics.jsonl") << store::to_line(step(1, 3.0)) << "\n";
  std::ofstream(dir_ / "config.toml") << "name = \"</pre><script>alert(1)</script>\"\n";
  std::ofstream(dir_ / "events.jsonl") << R"({"event":"note","wall_time_s":1,"text":"<img src=x>"})" << "\n";
  const std::string html = page();
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos) << "the page must need no network";
}

TEST_F(Report, RefusesWhatIsNoRun) { EXPECT_THROW(write_report(dir_ / "nowhere", dir_ / "x.html"), UsageError); }

TEST(Thin, KeepsTheSpike) {
  Points points;
  for (int i = 0; i < 100000; ++i) points.emplace_back(i, i == 77777 ? 50.0 : 1.0);
  const Points kept = thin(points, 640);
  EXPECT_LE(kept.size(), 1280u);
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const auto& p) { return p.second == 50.0; }));
}

}  // namespace
}  // namespace molen::serve
