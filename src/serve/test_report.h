// A run directory whose report is tested.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "serve/report.h"
#include "store/metrics.h"

namespace molen::serve {

class Report : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const char* name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  std::string page() {
    write_report(dir_, dir_ / "report.html");
    return read_file(dir_ / "report.html");
  }
  // Returns the data that the page's script reads.
  static Json data_of(const std::string& html) {
    const std::string open = "<script type=\"application/json\" id=\"data\">";
    const auto at = html.find(open) + open.size();
    return parse_json(html.substr(at, html.find("</script>", at) - at), "data");
  }
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_report_{}", ::getpid());
};

inline std::string step_line(std::int64_t s, double loss, std::int64_t attempt = 1) {
  store::StepMetrics m;
  m.step = s;
  m.attempt = attempt;
  m.loss = loss;
  m.tokens_total = s * 1000;
  m.step_s = 0.5;
  m.tokens_per_s = 2000;
  m.phase_s = {{"forward", 0.2}, {"backward", 0.25}, {"bubble", 0.05}};
  return store::to_line(m) + "\n";
}

inline std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

}  // namespace molen::serve
