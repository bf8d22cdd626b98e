// Tests the comparison of the hosts of a run.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "serve/report.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

class HostsOfARun : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }
  // Returns the page of a run of one step whose hosts have these joules in 10 s.
  std::string page_with(const std::string& joules, const std::string& more = "") {
    store::StepMetrics m;
    m.step = 1;
    m.energy_j = {{"dram0", 900.0}};
    m.energy_source = {{"dram0", "counter"}};
    std::ofstream(dir_ / "metrics.jsonl") << store::to_line(m) << "\n";
    std::ofstream(dir_ / "energy.jsonl") << R"({"event":"by_host","attempt":3,"seconds":10,"joules":)" << joules << more
                                         << "}\n";
    write_report(dir_, dir_ / "report.html");
    return read_file(dir_ / "report.html");
  }
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_hosts_{}", ::getpid());
};

TEST_F(HostsOfARun, ThatDeviateAreNamed) {
  // Median 1000 J; the deviations 0, 10, 250, 10 and 20 have the median 10.
  const std::string html = page_with(R"({"n1":1000,"n2":990,"n<3":1250,"n4":1010,"n5":980})");
  EXPECT_NE(html.find("Energy of the hosts in attempt 3"), std::string::npos);
  EXPECT_NE(html.find("<tr><th scope=row>n&lt;3<td>1.25 kJ<td>125 W<td>1.250<td class=text>outlier"),
            std::string::npos);
  EXPECT_NE(html.find("<tr><th scope=row>n5<td>0.98 kJ<td>98 W<td>0.980<td class=text><"), std::string::npos);
  EXPECT_NE(html.find("the greatest of 5 hosts has 1.2 times the mean (imbalance); outliers: n&lt;3 (+25.0 %)"),
            std::string::npos);
  const Json hosts = summary(dir_)["energy_hosts"];
  EXPECT_EQ(hosts["outliers"], Json::array({"n<3"}));
  EXPECT_EQ(hosts["median_j"], 1000);
  EXPECT_DOUBLE_EQ(hosts["imbalance"], 1250 * 5.0 / 5230);
  const std::string few = page_with(R"({"n1":1000,"n2":900,"n3":null})");
  EXPECT_NE(few.find("2 hosts are too few to name outliers"), std::string::npos);
  EXPECT_NE(few.find("<tr><th scope=row>n3<td>-<td>-<td>-<td class=text>not compared: no reading"), std::string::npos);
  EXPECT_EQ(summary(dir_)["energy_hosts"]["outliers"], Json()) << "not judged is not none";
  for (const char* nothing : {"7", "{}", R"({"n1":null})", R"({"n1":"x","n2":[]})", R"({"n1":-1e300})"}) {
    EXPECT_EQ(page_with(nothing).find("Energy of the hosts"), std::string::npos) << nothing;
    EXPECT_EQ(summary(dir_)["energy_hosts"], Json()) << nothing;
  }
}

TEST_F(HostsOfARun, ThatCountOtherScopesOrLostReadingsAreNotCompared) {
  // Two hosts would be outliers because one counts no memory and one has lost readings.
  const std::string mixed =
      page_with(R"({"n1":1000,"n2":990,"n3":800,"n4":1010,"n5":500,"n6":1000})",
                R"(,"scopes":{"n1":["cpu","dram"],"n2":["cpu","dram"],"n3":["cpu"],"n4":["cpu","dram"],)"
                R"("n5":["cpu","dram"],"n6":["cpu","dram"]},"lost":{"n5":["dram"]})");
  EXPECT_NE(mixed.find("not compared: n3, other scopes: cpu; n5, readings lost of dram.</p>"), std::string::npos);
  EXPECT_NE(mixed.find("<tr><th scope=row>n3<td>0.8 kJ<td>80 W<td>-<td class=text>not compared: other scopes: cpu"),
            std::string::npos);
  const Json compared = summary(dir_)["energy_hosts"];
  EXPECT_EQ(compared["outliers"], Json::array());
  EXPECT_EQ(compared["not_compared"], (Json{{"n3", "other scopes: cpu"}, {"n5", "readings lost of dram"}}));
  EXPECT_EQ(compared["median_j"], 1000);
  (void)page_with(R"({"n1":1000,"n2":990})", R"(,"lost":{"n2":["dram"]},"scopes":7)");
  EXPECT_EQ(summary(dir_)["energy_hosts"]["median_j"], Json()) << "one host has no others";
}

}  // namespace
}  // namespace molen::serve
