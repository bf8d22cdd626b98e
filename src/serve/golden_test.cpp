// Compares charts and a report with copies in tests/golden/serve, which a person has read and found right. A person
// must look at every change. MOLEN_WRITE_GOLDEN=1 writes the copies anew.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "base/file.h"
#include "serve/chart.h"
#include "serve/report.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const fs::path file = fs::path("tests/golden/serve") / name;
  if (std::getenv("MOLEN_WRITE_GOLDEN")) return write_file_atomic(file, text);
  const std::string golden = read_file(file);
  const auto [a, b] = std::mismatch(text.begin(), text.end(), golden.begin(), golden.end());
  const auto at = static_cast<std::size_t>(a - text.begin()), from = at < 80 ? 0 : at - 80;
  EXPECT_TRUE(a == text.end() && b == golden.end())
      << name << " differs at " << at << "\nis  " << text.substr(from, 200) << "\nwas " << golden.substr(from, 200);
}

Points wave(int count, double from, double step, double scale) {
  Points points;
  for (int i = 0; i < count; ++i)
    points.emplace_back(from + i * step, i % 17 == 5 ? std::nan("") : scale * std::sin(0.7 * i) + 1.5 * scale);
  return points;
}

TEST(Golden, Charts) {
  std::vector<Chart> charts(9);
  charts[0] = {"lines <a>",
               "step",
               "loss & more",
               {{"one", wave(40, 1, 1, 3.0)}, {"two 'x'", wave(60, 3, 2, 1e4)}},
               {{7, "stop"}, {500, "outside"}}};
  charts[1] = {"a point", "step", "y", {{"one", {{3, 2.5}}}, {"none", {{3, std::nan("")}}}}, {}, true};
  charts[2] = {
      "stacked", "step", "s", {{"a", wave(30, 1, 1, 2)}, {"b", wave(30, 1, 1, 1)}, {"c", wave(30, 1, 1, 0.25)}},
      {},        false,  true};
  charts[3] = {"one bar", "step", "s", {{"a", {{1, 2.0}}}, {"b", {{1, 3.0}}}}, {}, false, true};
  charts[4] = {"nothing", "step", "y", {{"one", {}}, {"two", {{1, std::nan("")}}}}};
  charts[5] = {"dashes and marks",
               "step",
               "y",
               {{"plan", wave(5, 0, 10, 1), false, 1},
                {"base", wave(5, 0, 10, 2), false, 2, 7},
                {"third", wave(5, 0, 10, 3), false, 3},
                {"seen", wave(23, 0, 2, 2.5), true, 0, 12}}};
  charts[6] = {"long", "tokens", "rate", {{"many", wave(5000, 0, 1000, 2e6)}}, {{0, "start"}, {4.999e6, "end"}}, true};
  charts[7] = {"constant", "step", "y", {{"zero", {{0, 0}, {10, 0}}}, {"same", {{0, 0}, {10, 0}}}}};
  charts[8] = {"great and small",
               "step",
               "y",
               {{"great", {{0, 1e9}, {1, -2.5e9}, {2, 1e6}, {3, 9999}, {4, 1e4}}}, {"small", {{0, 1e-7}, {4, -3e-9}}}}};
  std::string all;
  for (std::size_t i = 0; i < charts.size(); ++i) all += to_html(charts[i], i) + "\n" + to_script(charts[i]) + "\n";
  expect_golden("charts.txt", all);
}

store::StepMetrics step(std::int64_t s) {
  store::StepMetrics m;
  m.step = s;
  m.attempt = s < 4 ? 1 : 2;
  m.wall_time_s = 1.7e9 + 3600.0 * static_cast<double>(s);
  m.loss = s == 5 ? std::nan("") : 4.0 / static_cast<double>(s);
  m.grad_norm = 0.5 * static_cast<double>(s);
  m.lr = 1e-4 * static_cast<double>(s);
  m.loss_scale = 1024.0;
  m.skipped_steps = s == 5 ? 1 : 0;
  m.tokens_total = s * 2048;
  m.step_s = 0.5 + 0.01 * static_cast<double>(s % 3);
  m.tokens_per_s = 2048 / m.step_s;
  m.tokens_per_s_per_device = m.tokens_per_s / 2;
  m.flops_formula = "causal";
  m.model_tflops_per_device = 0.25;
  m.mfu = 0.31 + 0.01 * static_cast<double>(s);
  m.hfu = 0.4;
  m.memory_peak_bytes = 123456789 + s;
  m.memory_planned_bytes = 123456800;
  m.data_wait_s = 0.001 * static_cast<double>(s);
  m.phase_s = {{"forward", 0.2}, {"backward", 0.25}, {"bubble", m.step_s - 0.45}};
  m.energy_j = {{"package-0", 30.0 + static_cast<double>(s)},
                {"gpu", s == 2 ? std::nullopt : std::optional(50.0)},
                {"dram", std::nullopt}};
  m.energy_source = {{"package-0", s < 4 ? "counter" : "power"}, {"gpu", "counter"}, {"dram", "none"}};
  m.j_per_token = 0.04;
  m.kwh_total = 2.3e-5 * static_cast<double>(s);
  m.energy_coverage = "cpu only";
  m.samples = {8 * (s - 1), 8 * s - 1};
  return m;
}

// The page without third-party styles and scripts, and without the time at which it was written.
TEST(Golden, ReportOfARun) {
  const fs::path dir = fs::temp_directory_path() / fmt::format("molen_golden_{}", ::getpid()) / "a run";
  fs::create_directories(dir);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(dir / name) << text; };
  std::string lines;
  for (std::int64_t s = 1; s <= 8; ++s) lines += store::to_line(step(s)) + "\n";
  write("metrics.jsonl", lines);
  write("events.jsonl",
        R"({"event":"start","step":0,"wall_time_s":1.7e9,"ranks":2,"threads":4,"parameters":56400000,"layout":"ZERO1"}
{"event":"meters","available":["package-0","gpu"],"unavailable":{"dram":"no counter <here>"}}
{"event":"baseline","name":"trigram","bits_per_byte":{"en":3.7,"nl":3.45}}
{"event":"validation","step":4,"loss":2.5,"bits_per_byte":{"en":2.9,"nl":2.6}}
{"event":"stop","step":4,"reason":"signal","wall_time_s":1.700015e9}
{"event":"resume","step":4,"wall_time_s":1.70002e9,"ranks":2,"threads":4}
{"event":"checkpoint","step":8,"seconds":0.25}
{"event":"validation","step":8,"loss":2.25,"bits_per_byte":{"en":2.7,"nl":2.4}}
{"event":"stop","step":8,"reason":"until","wall_time_s":1.70003e9}
)");
  write(
      "predicted.json",
      R"({"step_s":{"predicted":0.55,"predicted_spread":0.2,"measured":0.5},"memory_bytes":{"predicted":1000000,"measured":1100000},"phases":{"forward":{"predicted":0.21,"measured":0.2},"bubble":{"predicted":null,"measured":0.05}},"ops":[{"op":"forward attention","count":8,"predicted_s":0.02,"predicted_spread":0.324,"measured_s":0.03},{"op":"all_reduce","count":2,"predicted_s":null,"measured_s":0.01},{"op":"far","count":3,"predicted_s":0.09,"measured_s":0.01},{"op":"none","count":1,"predicted_s":null,"measured_s":null}],"parts":[{"part":"waiting for tp_comm","predicted_s":0.05,"measured_s":0.1},{"part":"rest","predicted_s":0.02,"measured_s":null}],"axes":[{"stream":"tp_comm","predicted_s":0.2,"measured_s":0.3,"predicted_exposed_s":0.05,"measured_exposed_s":0.1}],"step_j":{"predicted":12.5,"predicted_devices":9,"measured":10,"coverage":"gpu only"},"later_stages":[{"step_s":{"predicted":0.4,"measured":0.5},"parts":[{"part":"forward attention","predicted_s":0.1,"measured_s":0.2}]},{"failure":"no file <x>"}]})");
  write(
      "environment.json",
      R"({"host":"mill","cpu":"A <CPU>","gpu":"none","cores":2,"molen":"0.1.0","git":"abc","libtorch":"2.13","compiler":"gcc","device_peak":{"source":"measured: 100 GFLOP/s"}})");
  write(
      "energy.jsonl",
      R"({"event":"site","name":"cellar <1>","pue":{"value":1.25,"spread":0.06},"intensity_g_per_kwh":{"value":268,"spread":0.08,"source":"a table"},"water_l_per_kwh":{"value":0.5},"price_eur_per_kwh":null}
{"event":"totals","steps":8,"tokens":16384,"total_j":640,"j_per_token":0.039,"kg_co2e":5.96e-5,"spent_site_j":800,"spent_kg_co2e":5.96e-5,"spent_water_l":8.9e-5,"spent_eur":null,"spent_market_kg_co2e":1.2e-5,"spent_embodied_kg_co2e":2.5e-5,"partial":"without dram"}
)");
  write("config.toml",
        "[model]\npreset = \"llama-60m\"\nlayers = 8\nhidden = 512\n[batch]\nglobal = 8\nmicro = 2\n[parallel]\nzero = "
        "1\ntensor = 2\n[data]\nsequence_length = 256\n");
  write_report(dir, dir / "report.html");
  std::string page = read_file(dir / "report.html");
  fs::remove_all(dir.parent_path());
  page = page.substr(page.find("<header>"));
  page = page.substr(0, page.find("<!-- uPlot")) +
         page.substr(page.find("<script type"), page.rfind("<script>") - page.find("<script type"));
  page = page.substr(0, page.find("<script>"));
  page = std::regex_replace(page, std::regex(" on [0-9TZ:. -]+\\. Charts"), " on DATE. Charts");
  expect_golden("report.html", page + "\n");
}

}  // namespace
}  // namespace molen::serve
