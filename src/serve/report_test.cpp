#include "serve/report.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"
#include "serve/assets.h"
#include "serve/chart.h"
#include "serve/page.h"
#include "serve/run_data.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

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

std::string step_line(std::int64_t s, double loss, std::int64_t attempt = 1) {
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

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

TEST_F(Report, RunsWithoutSteps) {
  write("metrics.jsonl", "");
  EXPECT_NE(page().find("Nothing measured."), std::string::npos);
  EXPECT_EQ(summary(dir_)["steps"], 0);
  EXPECT_TRUE(summary(dir_)["last"].is_null());
  fs::remove(dir_ / "metrics.jsonl");
  write("config.toml", "[model]\n");  // the run died before its first step
  EXPECT_EQ(data_of(page())["charts"][0], Json());
}

TEST_F(Report, OneStepIsAPoint) {
  write("metrics.jsonl", step_line(1, 3.0));
  const std::string html = page();
  EXPECT_NE(html.find("<circle"), std::string::npos);
  EXPECT_EQ(data_of(html)["charts"][0]["series"][0]["y"], Json::array({3.0}));
}

TEST_F(Report, LastAttemptOfAStepCounts) {
  write("metrics.jsonl", step_line(1, 3.0) + step_line(2, 2.9) + step_line(2, 2.5, 2) + step_line(3, 2.25, 2));
  const Json series = data_of(page())["charts"][0]["series"][0];
  EXPECT_EQ(series["x"], Json::array({1, 2, 3}));
  EXPECT_EQ(series["y"], Json::array({3.0, 2.5, 2.25}));
  EXPECT_EQ(summary(dir_)["attempts"], 2);
}

// A later start that finds nothing to do must not hide how the training ended.
TEST_F(Report, ShowsHowTheTrainingEnded) {
  const auto ended = [&] {
    const std::string html = page(), open = "<dt>Ended<dd>";
    const auto at = html.find(open);
    return at == std::string::npos ? "" : html.substr(at + open.size(), html.find("</div>", at) - at - open.size());
  };
  const std::string trained = R"({"event":"start","step":0})"
                              "\n"
                              R"({"event":"stop","step":30,"reason":"reached train.until"})"
                              "\n";
  const std::string idle = R"({"event":"resume","step":30})"
                           "\n"
                           R"({"event":"stop","step":30,"reason":"nothing to do"})"
                           "\n";
  write("metrics.jsonl", step_line(30, 3.0));
  write("events.jsonl", trained);
  EXPECT_EQ(ended(), "reached train.until");
  write("events.jsonl", trained + idle);
  EXPECT_EQ(ended(), "reached train.until; started once more after that, with nothing to do");
  write("events.jsonl", trained + idle + idle);
  EXPECT_EQ(ended(), "reached train.until; started 2 times more after that, with nothing to do");
  write("events.jsonl", trained + idle +
                            R"({"event":"resume","step":30})"
                            "\n"
                            R"({"event":"stop","step":40,"reason":"stopped by a signal"})"
                            "\n");
  EXPECT_EQ(ended(), "stopped by a signal");
  write("events.jsonl", trained + R"({"event":"resume","step":30})"
                                  "\n");
  EXPECT_EQ(ended(), "no stop recorded: still running, or killed");
  write("events.jsonl", idle);  // the older events of this directory are gone
  EXPECT_EQ(ended(), "nothing to do");
}

TEST_F(Report, TornLineIsLeftOutAndNamed) {
  write("metrics.jsonl", step_line(1, 3.0) + step_line(2, 2.0).substr(0, 30));
  write("events.jsonl", "{\"event\":\"stop\",\"step\":1}\n{\"event\":\"st");
  const std::string html = page();
  EXPECT_NE(html.find("1 line of metrics.jsonl cut short"), std::string::npos);
  EXPECT_NE(html.find("1 line of events.jsonl cut short"), std::string::npos);
  EXPECT_EQ(summary(dir_)["steps"], 1);
}

TEST_F(Report, NonFiniteIsAGapAndNamed) {
  write("metrics.jsonl", step_line(1, 3.0) + step_line(2, std::nan("")) +
                             step_line(3, std::numeric_limits<double>::infinity()) + step_line(4, 2.0));
  const std::string html = page();
  EXPECT_EQ(data_of(html)["charts"][0]["series"][0]["y"], Json::array({3.0, nullptr, nullptr, 2.0}));
  EXPECT_NE(html.find("not finite at 2 steps, first at step 2"), std::string::npos);
  // The page's own markup, without the scripts, holds no such number.
  const std::string markup = html.substr(0, html.find("<script"));
  for (const char* bad : {">nan", ">-nan", ">inf", "nan<", "=nan", "=inf", " nan", "Mnan", "Lnan"})
    EXPECT_EQ(markup.find(bad), std::string::npos) << bad;
}

TEST_F(Report, EscapesWhatTheUserWrote) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";
  write(
      "metrics.jsonl",
      R"({"step":1,"attempt":1,"wall_time_s":0,"loss":3,"grad_norm":1,"lr":1,"tokens_total":1,"step_s":1,"tokens_per_s":1,)"
      R"("tokens_per_s_per_device":1,"model_tflops_per_device":null,"mfu":null,"hfu":null,"memory_peak_bytes":1,)"
      R"("memory_planned_bytes":1,"data_wait_s":0,"phase_s":{"</script><img>":1},"energy_j":{"<img>":1},)"
      R"("energy_source":{"<img>":"<img>"},"j_per_token":1,"samples":[0,1]})"
      "\n");
  write("config.toml", "[model]\npreset = \"" + evil + "\"\nx = \"{{data}}\"\n");
  write("environment.json", Json{{"host", evil}, {evil, evil}}.dump());
  write("events.jsonl",
        Json{{"event", evil}, {"step", evil}, {"text", evil}, {evil, evil}}.dump() + "\n" +
            Json{{"event", "validation"}, {"step", 1}, {"loss", 1}, {"bits_per_byte", {{evil, 1}}}}.dump() + "\n" +
            Json{{"event", "baseline"}, {"name", evil}, {"bits_per_byte", {{evil, 1}}}}.dump() + "\n" +
            Json{{"event", "meters"}, {"unavailable", {{evil, evil}}}}.dump() + "\n");
  write("predicted.json",
        Json{{"ops", {{{"kind", evil}, {"count", evil}, {"predicted_s", 1}, {"measured_s", 2}, {"bytes", 3}}}}}.dump());
  const std::string html = page();
  EXPECT_EQ(count_of(html, "<script"), 3u);  // the data, uPlot, and our script
  EXPECT_EQ(count_of(html, "</script"), 3u);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert"), std::string::npos);
  EXPECT_NE(html.find("{{data}}"), std::string::npos) << "a run's text was taken for a placeholder";
  EXPECT_EQ(data_of(html)["charts"][1]["series"][0]["name"], evil);
}

TEST_F(Report, NeedsNoNetwork) {
  write("metrics.jsonl", step_line(1, 3.0));
  const std::string html = page();
  for (const char* tag : {"<link", "src=", "@import", "url("}) EXPECT_EQ(html.find(tag), std::string::npos) << tag;
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
}

TEST_F(Report, DamagedFilesBesideTheMetricsCostTheirPartOnly) {
  write("metrics.jsonl", step_line(1, 3.0));
  for (const char* damage :
       {"{", "[]", "null", "\"x\"", "{\"step_s\":3,\"memory_bytes\":[],\"ops\":{\"a\":1}}", "{\"ops\":[1,null,{}]}",
        "{\"step_s\":{\"predicted\":1e999}}", "{\"memory_bytes\":{\"planned\":1e300,\"measured\":-1e300}}"}) {
    write("predicted.json", damage);
    write("environment.json", damage);
    write("events.jsonl",
          std::string(damage) +
              "\n{\"event\":7,\"step\":\"x\",\"wall_time_s\":1e300}\n{\"event\":\"resume\",\"step\":null}\n"
              "{\"event\":\"validation\",\"step\":1e300,\"bits_per_byte\":7}\n");
    EXPECT_NO_THROW(page()) << damage;
    EXPECT_NO_THROW(summary(dir_)) << damage;
  }
}

TEST_F(Report, ShowsBaselinesEnergyAndPrediction) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"package-0", 7.2e6}, {"gpu", std::nullopt}};
  m.energy_source = {{"package-0", "counter"}, {"gpu", "none"}};
  write("metrics.jsonl", store::to_line(m) + "\n");
  write("events.jsonl", R"({"event":"validation","step":1,"loss":2,"bits_per_byte":{"nl":1.5}})"
                        "\n"
                        R"({"event":"baseline","name":"5-gram","bits_per_byte":{"nl":2.25}})"
                        "\n"
                        R"({"event":"stop","step":1,"reason":"until"})"
                        "\n"
                        R"({"event":"resume","step":1})"
                        "\n");
  write("predicted.json", R"({"step_s":{"predicted":1.1,"measured":1.0},"ops":[]})");
  const std::string html = page();
  EXPECT_NE(html.find("<b>2 kWh"), std::string::npos);
  EXPECT_NE(html.find("+10.0%"), std::string::npos);
  const Json bits = data_of(html)["charts"][1];
  EXPECT_EQ(bits["series"][1]["name"], "5-gram, nl");
  EXPECT_EQ(bits["series"][1]["y"], Json::array({2.25, 2.25}));
  EXPECT_EQ(bits["marks"], Json::parse(R"([{"x":1,"name":"stop, resume"}])"));
  EXPECT_EQ(summary(dir_)["energy_j"]["package-0"], 7.2e6);
}

// The page lists the last doubts of each attempt, because the totals have the joules of all attempts.
TEST_F(Report, JoulesThatMayBeWrongAreNamed) {
  write("metrics.jsonl", step_line(1, 3.0));
  EXPECT_EQ(page().find("Joules that may be wrong"), std::string::npos);
  write("energy.jsonl", R"({"event":"doubtful","attempt":1,"step":5,"reasons":{"gpu<0":"at first"}})"
                        "\n"
                        R"({"event":"doubtful","attempt":1,"step":9,"reasons":{"gpu<0":"two <figures>"}})"
                        "\n"
                        R"({"event":"doubtful","attempt":3,"step":12,"reasons":{"gpu1":"others"}})"
                        "\n");
  EXPECT_NE(page().find("Joules that may be wrong:</p><ul class=none><li>attempt 1, gpu&lt;0: two &lt;figures&gt;<li>"
                        "attempt 3, gpu1: others</ul>"),
            std::string::npos);
  EXPECT_EQ(summary(dir_)["energy_doubts"], (Json{{"1", {{"gpu<0", "two <figures>"}}}, {"3", {{"gpu1", "others"}}}}));
  for (const char* damage : {"7", R"({"event":"doubtful"})", R"({"event":"doubtful","attempt":1,"reasons":[1]})",
                             R"({"event":"doubtful","attempt":1e99,"reasons":{"a":"b"}})"}) {
    write("energy.jsonl", std::string(damage) + "\n");
    EXPECT_EQ(page().find("Joules that may be wrong"), std::string::npos) << damage;
  }
}

TEST_F(Report, APredictionMayBeGivenThatTheRunDidNotHave) {
  write("metrics.jsonl", step_line(1, 3.0));
  write("predicted.json", R"({"step_s":{"predicted":1.1,"measured":1.0}})");
  const Json given = Json::parse(
      R"({"step_s":{"predicted":3.0,"measured":2.0},"phases":[)"
      R"({"phase":"for<ward","predicted_s":0.5,"measured_s":0.4},{"phase":"head","predicted_s":0.1,"measured_s":0}]})");
  write_report(dir_, dir_ / "given.html", given);
  const std::string html = read_file(dir_ / "given.html");
  EXPECT_NE(html.find("<td>3.00 s<td>2.00 s<td>+50.0%"), std::string::npos);
  EXPECT_EQ(html.find("+10.0%"), std::string::npos) << "of predicted.json";
  EXPECT_NE(html.find("<th scope=row>for&lt;ward<td><td><td>500.0 ms<td>400.0 ms<td>+25.0%"), std::string::npos);
  EXPECT_NE(html.find("<th scope=row>head<td><td><td>100.0 ms<td>"), std::string::npos);
  EXPECT_EQ(summary(dir_, given)["predicted"], given);
  EXPECT_EQ(summary(dir_)["predicted"]["step_s"]["predicted"], 1.1);
}

// Of many events the first and the last 60 are shown, and the number of those between.
TEST_F(Report, ShowsTheEndsOfManyEvents) {
  const auto shown = [&](int count) {
    std::string events;
    for (int i = 1; i <= count; ++i)
      events += fmt::format(R"({{"event":"note","step":{},"text":"note {} "}})", i, i) + "\n";
    write("events.jsonl", events);
    const std::string html = page();
    int notes = 0;
    for (int i = 1; i <= count; ++i) notes += html.find(fmt::format("note {} <", i)) != std::string::npos ? 1 : 0;
    return std::pair(notes, html.find(fmt::format("{} more<td>", count - 120)) != std::string::npos);
  };
  EXPECT_EQ(shown(119), std::pair(119, false));
  EXPECT_EQ(shown(120), std::pair(120, false));
  EXPECT_EQ(shown(150), std::pair(120, true));
}

TEST_F(Report, ShowsTheResolutionOfJoules) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"dram0", 900.0}, {"gpu0", 5000.0}};
  m.energy_source = {{"dram0", "power"}, {"gpu0", "counter"}};
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_NE(page().find("<th scope=row>gpu0<td>5 kJ<td>not known<td>"), std::string::npos) << "an older run";
  const std::string totals = R"({"event":"totals","steps":1,"tokens":10,"total_j":5900,"total_resolution_j":)";
  const std::string scopes = R"(,"resolution_j":{"gpu0":70,"dram0":null}})";
  write("energy.jsonl", totals + "null" + scopes + "\n");
  std::string html = page();
  EXPECT_NE(html.find("<th scope=row>gpu0<td>5 kJ<td>0.07 kJ<td>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=row>dram0<td>0.9 kJ<td>not known<td>"), std::string::npos);
  EXPECT_NE(html.find("5.9 kJ (the resolution of a meter is not known)"), std::string::npos);
  write("energy.jsonl", totals + "80" + scopes + "\n");
  EXPECT_NE(page().find("5.9 kJ &plusmn; 0.08 kJ by the resolution of the meters, whose accuracy is not known"),
            std::string::npos);
  write("energy.jsonl", totals + "80" + R"(,"resolution_j":7})" + "\n");
  EXPECT_NO_THROW(page());
}

TEST_F(Report, ShowsWhatAModelEstimatesApart) {
  const auto written = [&](const std::string& energy) {
    store::StepMetrics m;
    m.step = 1;
    m.energy_j = {{"dram0", 900.0}};
    m.energy_source = {{"dram0", "counter"}};
    m.energy_model_j = {{"host", store::StepMetrics::Modelled{5000.0, 4000.0, 6000.0}}};
    write("metrics.jsonl", store::to_line(m) + "\n");
    write("energy.jsonl", energy);
  };
  written("");
  EXPECT_EQ(page().find("Estimated by a model"), std::string::npos);
  const Json without = summary(dir_);
  written(R"({"event":"modelled","energy_j":{"host":{"joules":5000,"least":4000,"most":6000},"gpu0":null},)"
          R"("scopes":{"host":{"figures":"a<b"}}})"
          "\n");
  const std::string html = page();
  EXPECT_NE(html.find("<th scope=row>host<td>5 kJ<td>4 to 6 kJ<td class=text>model: a&lt;b"), std::string::npos);
  EXPECT_NE(html.find("<th scope=row>gpu0<td>-<td>-"), std::string::npos);
  EXPECT_EQ(summary(dir_)["energy_j"], without["energy_j"]) << "in no sum";
  EXPECT_EQ(summary(dir_)["energy_modelled"]["energy_j"]["host"]["joules"], 5000);
  for (const char* damage : {"7", "{}", R"({"g":7})", R"({"g":{"joules":"x"}})"}) {
    written(std::string(R"({"event":"modelled","scopes":7,"energy_j":)") + damage + "}\n");
    EXPECT_NO_THROW(page()) << damage;
  }
}

TEST_F(Report, NamesTheSourcesThatMeasuredNothing) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"gpu", std::nullopt}};
  m.energy_source = {{"gpu", "none: no driver"}};
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_NE(page().find("Not measured; gpu: none: no driver."), std::string::npos);
}

// A run went to step 12 and was then resumed from step 4. The steps between no longer belong to it.
TEST_F(Report, DropsWhatLiesBeyondALaterResume) {
  std::string events;
  for (const int at : {4, 8, 12})
    events += fmt::format("{{\"event\":\"validation\",\"step\":{},\"loss\":{}}}\n", at, 20 - at);
  write("metrics.jsonl", step_line(1, 3.0));
  write("events.jsonl", events + "{\"event\":\"stop\",\"step\":12}\n");
  EXPECT_EQ(summary(dir_)["validation"]["step"], 12);
  events += "{\"event\":\"stop\",\"step\":12}\n{\"event\":\"resume\",\"step\":4}\n";
  write("events.jsonl", events);
  EXPECT_EQ(summary(dir_)["validation"]["step"], 4);
  EXPECT_EQ(data_of(page())["charts"][0]["series"][1]["x"], Json::array({4}));
  EXPECT_EQ(data_of(page())["charts"][0]["marks"], Json::parse(R"([{"x":4,"name":"resume"}])"));
  write("events.jsonl", events + "{\"event\":\"start\",\"step\":0}\n");
  EXPECT_TRUE(summary(dir_)["validation"].is_null());
}

// A measurement without an estimate is a gap, and a run without measurements has no such chart.
TEST_F(Report, ShowsTheNoiseScaleBesideABatch) {
  const auto charts = [&](const std::string& events) {
    write("events.jsonl", events);
    std::vector<Json> found;
    const Json data = data_of(page());
    for (const Json& chart : data["charts"])
      if (chart.is_object() && chart["title"] == "Gradient noise scale") found.push_back(chart);
    return found;
  };
  const auto measured = [](int step, const char* tokens) {
    return fmt::format("{{\"event\":\"noise_scale\",\"step\":{},\"tokens\":{},\"large\":{{\"tokens\":64}}}}\n", step,
                       tokens);
  };
  write("metrics.jsonl", step_line(1, 3.0));
  EXPECT_TRUE(charts("{\"event\":\"start\",\"step\":0}\n").empty());
  const std::string events = measured(4, "null") + measured(8, "900") + measured(12, "800");
  for (const auto& [more, steps] :
       {std::pair(std::string(), Json{4, 8, 12}), {std::string("{\"event\":\"resume\",\"step\":8}\n"), Json{4, 8}}}) {
    const auto found = charts(events + more);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0]["series"][1]["x"], steps);
    EXPECT_EQ(found[0]["series"][1]["y"][0], 64);
    EXPECT_EQ(found[0]["series"][0]["y"].back(), steps.size() == 3 ? 800 : 900);
  }
}

// Steps without a total have no place in it, and a held-out loss stands at the energy of its step.
TEST_F(Report, ShowsTheLossAgainstTheEnergy) {
  std::string lines;
  for (const int step : {1, 2, 3, 4}) {
    store::StepMetrics m;
    m.step = step;
    m.loss = 9.0 - step;
    m.energy_j = {{"node", 1000.0}};
    m.energy_source = {{"node", "counter"}};
    if (step != 2) m.kwh_total = 0.5 * step;
    lines += store::to_line(m) + "\n";
  }
  write("metrics.jsonl", lines);
  write("events.jsonl",
        "{\"event\":\"validation\",\"step\":2,\"loss\":7.5}\n{\"event\":\"validation\",\"step\":3,\"loss\":6.5}\n");
  const Json charts = data_of(page())["charts"];
  const auto chart = std::find_if(charts.begin(), charts.end(),
                                  [](const Json& c) { return c.is_object() && c["title"] == "Loss against energy"; });
  ASSERT_NE(chart, charts.end());
  EXPECT_EQ((*chart)["x"], "kWh");
  EXPECT_EQ((*chart)["series"][0]["x"], Json::array({0.5, 1.5, 2.0}));
  EXPECT_EQ((*chart)["series"][0]["y"], Json::array({8.0, 6.0, 5.0}));
  EXPECT_EQ((*chart)["series"][1]["x"], Json::array({1.5}));
  EXPECT_EQ((*chart)["series"][1]["y"], Json::array({6.5}));
}

TEST_F(Report, ShowsWhatAPolicySaved) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"node", 1000.0}};
  m.energy_source = {{"node", "counter"}};
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_EQ(page().find("Energy policy"), std::string::npos);
  write("events.jsonl",
        R"({"event":"policy","policy":"min_energy","kind":"clock","unit":"Hz","chosen":1.2e9,"savings":{"joules":)"
        R"({"value":812,"low":776,"high":848,"pairs":8},"seconds":{"value":-0.02,"low":-0.03,"high":-0.01,"pairs":8}}})"
        "\n");
  const std::string html = page();
  EXPECT_NE(html.find("min_energy set the clock of the job's devices between steps, and chose 1200 MHz."),
            std::string::npos);
  EXPECT_NE(html.find("<th scope=row>energy<td>812 J<td>776 to 848 J<td>8"), std::string::npos);
  EXPECT_NE(html.find("<th scope=row>time<td>-20 ms<td>-30 to -10 ms<td>8"), std::string::npos);
  write("events.jsonl",
        R"({"event":"policy","policy":"slack","kind":"clock","unit":"Hz","chosen":"program","savings":{}})"
        "\n");
  EXPECT_NE(page().find("steps, and chose the clocks that the program sets within them."), std::string::npos);
  write("events.jsonl",
        R"({"event":"policy","policy":"sweep","kind":"power limit","unit":"W","chosen":null,"savings":{}})"
        "\n");
  EXPECT_NE(page().find("<th scope=row>energy<td>not measured"), std::string::npos);
  write("events.jsonl",
        R"({"event":"policy","policy":"power_budget","kind":"power limit","unit":"W","budget_w":2000,"refused":"gone"})"
        "\n");
  EXPECT_NE(page().find("power limit of the job's devices between steps, to keep the job below 2000 W.</p><p>It ended "
                        "before the run did: gone.</p>"),
            std::string::npos);
  EXPECT_EQ(page().find("Saved in a step"), std::string::npos) << "a budget is kept, and saves nothing by itself";
}

TEST_F(Report, ShowsTheForecastAndTheBudget) {
  store::StepMetrics m;
  m.step = 7;
  m.energy_j = {{"node", 1000.0}};
  m.energy_source = {{"node", "counter"}};
  m.j_per_token = 0.5;
  m.energy_coverage = "gpu <only>";
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_EQ(page().find("Forecast after"), std::string::npos);
  m.kwh_at_end = {20.5, 19.5, 22.25};
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_NE(page().find("<p>Forecast after step 7 for the end of the run: 20.5 kWh (19.5 to 22.25) (gpu &lt;only&gt;), "
                        "with a probability of 95 % by the spread of steps.</p>"),
            std::string::npos);
  EXPECT_EQ(page().find("<h3>Budget</h3>"), std::string::npos);
  m.kg_co2e_at_end = {5.5, 5.25, 6.5};
  write("metrics.jsonl", store::to_line(m) + "\n");
  write("events.jsonl", R"({"event":"budget","step":5,"action":"exceeds","text":"2 kWh <pay> for 9 steps"})"
                        "\n");
  const std::string html = page();
  EXPECT_NE(html.find("(19.5 to 22.25), 5.5 kg CO2e (5.25 to 6.5) (gpu"), std::string::npos);
  EXPECT_NE(html.find("<tr><td>5<td class=text>2 kWh &lt;pay&gt; for 9 steps</table>"), std::string::npos);
}

TEST_F(Report, SaysWhatEnergyLeavesOut) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"gpu0", 900.0}};
  m.energy_source = {{"gpu0", "counter"}};
  m.j_per_token = 0.5;
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_EQ(page().find("J/token, last step ("), std::string::npos);
  m.energy_coverage = "gpu <only>";
  write("metrics.jsonl", store::to_line(m) + "\n");
  write("energy.jsonl",
        R"({"event":"totals","steps":1,"tokens":1800,"total_j":1000,"j_per_token":0.25,"partial":""})"
        "\n"
        R"({"event":"totals","steps":2,"tokens":3600,"total_j":1800,"j_per_token":0.5,"undone_j":200,"partial":"g<"})"
        "\n{\"event\":\"tot");
  const std::string html = page();
  EXPECT_NE(html.find("J/token, last step (gpu &lt;only&gt;)"), std::string::npos);
  EXPECT_NE(html.find("1.8 kJ, 0.5 J/token over 2 steps and 3.60 k tokens (g&lt;). Another 0.2 kJ "
                      "(10.0% of all) went into steps that failures undid.</p>"),
            std::string::npos);
  EXPECT_EQ(data_of(html)["charts"].dump().find("\"J/token\""), std::string::npos);
  EXPECT_EQ(summary(dir_)["energy_totals"]["total_j"], 1800);
  write("energy.jsonl", "{\"event\":\"totals\",\"steps\":[],\"total_j\":1}\n[]\n");
  EXPECT_EQ(page().find("Whole run"), std::string::npos);
}

TEST_F(Report, ShowsWhereTheJoulesOfEachScopeWent) {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"gpu0", 900.0}};
  m.energy_source = {{"gpu0", "counter"}};
  write("metrics.jsonl", store::to_line(m) + "\n");
  EXPECT_EQ(page().find("Where the joules"), std::string::npos);
  const std::string entries =
      R"({"forward":{"joules":250,"standard_error_j":5,"rank_seconds":2,"note":"a<b"},)"
      R"("back":{"joules":700,"standard_error_j":null,"rank_seconds":0},"unattributed":{"joules":50}})";
  write("energy.jsonl", R"({"event":"phases","scopes":{"old":{"joules":1,"entries":{}}}})"
                        "\n"
                        R"({"event":"phases","scopes":{"gpu<0":{"joules":1000,"entries":)" +
                            entries + R"(,"not_attributed":{"h<":"too few"}}}})" + "\n");
  const std::string html = page();
  EXPECT_NE(html.find("Where the joules of gpu&lt;0 went"), std::string::npos);
  EXPECT_EQ(html.find("Where the joules of old"), std::string::npos);
  const auto back = html.find("<th scope=row>back<td>0.7 kJ<td><td>70.0%<td><td>"),
             forward = html.find(
                 "<th scope=row>forward<td>0.25 kJ<td>0.0098 kJ<td>25.0%<td>2 s<td>125 W<td "
                 "class=text>a&lt;b"),
             rest = html.find("<th scope=row>unattributed<td>0.05 kJ<td><td>5.0%");
  ASSERT_NE(forward, std::string::npos);
  EXPECT_LT(back, forward) << "the largest first";
  EXPECT_LT(forward, rest);
  EXPECT_NE(html.find("h&lt;: not divided among phases: too few."), std::string::npos);
  EXPECT_EQ(html.find("Phases over all attempts"), std::string::npos);
  EXPECT_EQ(summary(dir_)["energy_phases"]["scopes"]["gpu<0"]["joules"], 1000);
  const std::string totals = R"({"event":"totals","attempt":2,"phases_j":{"gpu<0":{"for<ward":1500,"x":"y"}}})";
  write("energy.jsonl", totals + "\n");
  EXPECT_NE(page().find("<th scope=row>gpu&lt;0<td class=text>for&lt;ward<td>1.5 kJ"), std::string::npos);
  for (const char* damage : {"7", "{}", R"({"g":7})", R"({"g":{"joules":1,"entries":{"a":7}}})"}) {
    write("energy.jsonl", std::string(R"({"event":"phases","scopes":)") + damage + "}\n");
    EXPECT_NO_THROW(page()) << damage;
  }
}

TEST_F(Report, HostileRunsAreBounded) {
  std::string events;
  const auto validation = [](int step) {
    return fmt::format("{{\"event\":\"validation\",\"step\":{},\"loss\":2}}\n", step);
  };
  for (int i = 0; i < 1'000'000; ++i) events += validation(i);
  write("metrics.jsonl", "");
  write("events.jsonl", events);
  EXPECT_EQ(bounded("a run of 1,000,000 validations", [&] { read_run(dir_); }), "");
  const RunData run = read_run(dir_);
  EXPECT_EQ(run.validations.front().step, 0);
  EXPECT_EQ(run.validations.back().step, 999'999);
  EXPECT_NE(run.notices.at(0).find("left out"), std::string::npos);
  write("events.jsonl", "");
  std::string totals;
  for (int i = 0; i < 500'000; ++i) totals += fmt::format("{{\"event\":\"totals\",\"steps\":{}}}\n", i);
  write("energy.jsonl", totals + "{\"event\":\"totals\",\"st");
  EXPECT_EQ(bounded("a run of 500,000 totals", [&] { read_run(dir_); }), "");
  EXPECT_EQ(read_run(dir_).energy_totals["steps"], 499'999) << "the last that is whole";
  for (const char* name : {"metrics.jsonl", "events.jsonl", "energy.jsonl", "config.toml"}) {
    fs::remove(dir_ / name);
    fs::create_symlink("/dev/zero", dir_ / name);
    EXPECT_NE(bounded(fmt::format("{} is /dev/zero", name), [&] { read_run(dir_); }), "");
    fs::remove(dir_ / name);
    ASSERT_EQ(::mkfifo((dir_ / name).c_str(), 0600), 0);
    EXPECT_NE(bounded(fmt::format("{} is a pipe", name), [&] { read_run(dir_); }), "");
    fs::remove(dir_ / name);
    write(name, "");
    fs::resize_file(dir_ / name, std::uintmax_t{60} << 30);
    EXPECT_NE(bounded(fmt::format("{} is 60 GiB of holes", name), [&] { read_run(dir_); }), "");
    fs::remove(dir_ / name);
    write(name, "");
  }
}

// The lines have 1 KiB: those that begin in the first 4 MiB or in the last 4 MiB are read.
TEST_F(Report, SaysHowManyEventsAreLeftOut) {
  const std::string line = "{\"event\":\"x\",\"text\":\"" + std::string(1000, 'y') + "\"}\n";
  ASSERT_EQ(line.size(), 1024u);
  write("config.toml", "");
  for (const int kept_out : {0, 1024}) {
    std::string events;
    for (int i = 0; i < 8192 + kept_out; ++i) events += line;
    write("events.jsonl", events);
    const RunData run = read_run(dir_);
    EXPECT_EQ(run.events.size(), 8192u);
    std::vector<std::string> notices;
    if (kept_out > 0)
      notices.push_back(
          "events.jsonl has 9437184 bytes: 1024 events between its first and its last 4 MiB are left out, validations "
          "among them.");
    EXPECT_EQ(run.notices, notices);
  }
}

TEST_F(Report, NoticesSayWhatCouldNotBeRead) {
  write("metrics.jsonl", step_line(1, std::nan("")) + step_line(2, 3.0) + "{\"st\n{\"st");
  write("events.jsonl", "[]\n{\"ev\n");
  write("config.toml", "[model]\nlayers = \n");
  write("environment.json", "{");
  write("predicted.json", "{");
  const RunData run = read_run(dir_);
  const std::string no_json =
      ": not valid JSON: [json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing "
      "object key - unexpected end of input; expected string literal";
  EXPECT_EQ(
      run.notices,
      (std::vector<std::string>{
          "2 lines of metrics.jsonl cut short, and left out.", "The loss was not finite at 1 step, first at step 1.",
          "config.toml cannot be read: line 2: Error while parsing key-value pair: expected value, saw '\\n'",
          "environment.json could not be read: " + (dir_ / "environment.json").string() + no_json,
          "predicted.json could not be read: " + (dir_ / "predicted.json").string() + no_json,
          "2 lines of events.jsonl cut short, and left out."}));
  EXPECT_TRUE(run.values.empty());
  EXPECT_EQ(run.config, "[model]\nlayers = \n");
  EXPECT_TRUE(run.predicted.is_null());
}

// Numbers beyond the integers that a double represents exactly are no steps, whether positive or negative.
TEST_F(Report, StepsThatAreNoneAreLeftOut) {
  write("metrics.jsonl", "");
  const std::string kept = R"({"event":"validation","step":999999999999999,"loss":3})"
                           "\n"
                           R"({"event":"validation","step":1e15,"loss":2})"
                           "\n"
                           R"({"event":"validation","step":-1e15,"loss":2})"
                           "\n";
  for (const char* start : {"", R"({"event":"resume","step":-1e15})", R"({"event":"start","step":-1.5e15})",
                            R"({"event":"resume"})", R"({"event":"validation","loss":7})"}) {
    write("events.jsonl", kept + start + "\n");
    const RunData run = read_run(dir_);
    ASSERT_EQ(run.validations.size(), 1u) << start;
    EXPECT_EQ(run.validations[0].step, 999999999999999);
    EXPECT_EQ(run.validations[0].loss, 3.0);
  }
}

TEST_F(Report, SummaryIsWhole) {
  write("metrics.jsonl", step_line(1, 3.0) + step_line(2, 2.5) + step_line(3, 2.0, 2));
  write("events.jsonl", R"({"event":"validation","step":1,"loss":4,"bits_per_byte":{"nl":9}})"
                        "\n"
                        R"({"event":"validation","step":3,"loss":2,"bits_per_byte":{"en":1.25,"nl":1.5,"x":"y"}})"
                        "\n");
  write("predicted.json", R"({"step_s":{"predicted":1}})");
  Json all = summary(dir_);
  EXPECT_EQ(all["last"]["loss"], 2.0);
  all.erase("last");
  EXPECT_EQ(all, (Json{{"run", dir_.filename().string()},
                       {"steps", 3},
                       {"attempts", 2},
                       {"median_step_s", 0.5},
                       {"median_tokens_per_s", 2000.0},
                       {"validation", {{"step", 3}, {"loss", 2.0}, {"bits_per_byte", {{"en", 1.25}, {"nl", 1.5}}}}},
                       {"energy_j", Json::object()},
                       {"energy_totals", Json()},
                       {"energy_phases", Json()},
                       {"energy_doubts", Json::object()},
                       {"energy_modelled", Json()},
                       {"energy_hosts", Json()},
                       {"footprint", Json()},
                       {"predicted", {{"step_s", {{"predicted", 1}}}}},
                       {"notices", Json::array()}}));
}

// Only events of meters have reasons, and the last such event counts.
TEST_F(Report, MetersThatCouldNotBeRead) {
  const auto section = [&](const std::string& events) {
    write("metrics.jsonl", step_line(1, 3.0));
    write("events.jsonl", events);
    const std::string html = page();
    const auto at = html.find("<h2>Energy</h2>");
    return html.substr(at, html.find("<h2>", at + 5) - at);
  };
  const std::string none = section("");
  EXPECT_TRUE(
      none.starts_with("<h2>Energy</h2><p class=none>Not measured: this run recorded no meter (<code>molen "
                       "doctor</code> says which meters this machine has and why others cannot be read).</p>"))
      << none;
  EXPECT_EQ(section(R"({"event":"x","unavailable":{"gpu":"why"}})"), none);
  EXPECT_EQ(section(R"({"event":"meters"})"), none);
  EXPECT_EQ(section(R"({"event":"meters","unavailable":3})"), none);
  EXPECT_EQ(section(R"({"event":"meters","unavailable":{}})"), none);
  const std::string two = section(R"({"event":"meters","unavailable":{"dram":"old"}})"
                                  "\n"
                                  R"({"event":"meters","unavailable":{"cpu":"a<","gpu":"b"}})"
                                  "\n");
  EXPECT_TRUE(
      two.starts_with("<h2>Energy</h2><p class=none>Not measured.</p><p class=none>Meters that could not be "
                      "read:</p><ul class=none><li>cpu: a&lt;<li>gpu: b</ul>"))
      << two;
}

TEST_F(Report, TotalsAreTheLastLineOfTheirEvent) {
  write("metrics.jsonl", step_line(1, 3.0));
  write("energy.jsonl",
        "{\"event\":\"totals\",\"steps\":1}\n{\"event\":\"totals\",\"steps\":2}\n"
        "{\"event\":\"unread\",\"totals\":3}\n[\"totals\"]\n{\"event\":\"totals\",\"st");
  EXPECT_EQ(read_run(dir_).energy_totals, (Json{{"event", "totals"}, {"steps", 2}}));
}

// The last validation of a step counts, and validations are in the order of their steps.
TEST_F(Report, TheLastValidationOfAStepCounts) {
  write("metrics.jsonl", "");
  write("events.jsonl",
        "{\"event\":\"validation\",\"step\":20,\"loss\":3}\n{\"event\":\"validation\",\"step\":10,\"loss\":4}\n"
        "{\"event\":\"validation\",\"step\":20,\"loss\":2}\n");
  const RunData run = read_run(dir_);
  ASSERT_EQ(run.validations.size(), 2u);
  EXPECT_EQ(run.validations[0].step, 10);
  EXPECT_EQ(run.validations[1].loss, 2.0);
}

TEST_F(Report, ShowsTheLastValidation) {
  write("metrics.jsonl", step_line(1, 3.0));
  write("events.jsonl", "{\"event\":\"validation\",\"step\":1,\"loss\":2.53125,\"bits_per_byte\":{\"nl\":1.375}}\n");
  const std::string html = page();
  const auto shown = [&](const std::string& name, const std::string& value) {
    const auto at = html.find(name);
    return at != std::string::npos && html.substr(at > 200 ? at - 200 : 0, 400).find(value) != std::string::npos;
  };
  EXPECT_TRUE(shown("held-out loss", "2.5312")) << html.substr(0, 4000);
  EXPECT_TRUE(shown("bits per byte, nl", "1.375"));
}

TEST_F(Report, RefusesWhatIsNoRun) {
  const GoldenMessages golden;
  const auto refusal = [](const fs::path& path) {
    try {
      read_run(path);
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
    return std::string("read");
  };
  EXPECT_EQ(refusal(dir_ / "nowhere"),
            (dir_ / "nowhere").string() + ": no such run directory (`molen runs list` shows those there are)");
  EXPECT_EQ(refusal(dir_),
            dir_.string() + ": no metrics.jsonl, events.jsonl or config.toml here; is it a run directory?");
  for (const char* name : {"metrics.jsonl", "events.jsonl", "config.toml"}) {
    write(name, "");
    EXPECT_EQ(refusal(dir_), "read") << name;
    fs::remove(dir_ / name);
  }
  EXPECT_NOTED(write_report(dir_ / "nowhere", dir_ / "x.html"), UsageError);
  EXPECT_NOTED(summary(dir_ / "nowhere"), UsageError);
  EXPECT_NOTED(write_report(dir_, dir_ / "x.html"), UsageError);  // empty
  EXPECT_FALSE(fs::exists(dir_ / "x.html"));
}

TEST(ConfigValues, ReadsWhatAResolvedConfigHolds) {
  const GoldenMessages golden;
  const auto v = config_values(
      "a = 1\n[model]\nname = \"x # y \\\" z\"  # base.toml:3\n# tied is not set\nlayers = 2 # default\n"
      "[data]\ntrain = [  # mixed\n  { path = \"a\" },\n  { path = \"b\" }\n]\n[a-table.'x y']\nz = 1.5\n");
  EXPECT_EQ(v.at("a"), "1");
  EXPECT_EQ(v.at("model.name"), "x # y \" z");
  EXPECT_EQ(v.at("model.layers"), "2");
  EXPECT_EQ(v.at("data.train"), "[ { path = 'a' }, { path = 'b' } ]");
  EXPECT_EQ(v.at("a-table.x y.z"), "1.5");
  EXPECT_FALSE(v.contains("model.tied"));
  EXPECT_NOTED(config_values("a = 1\n[broken\n"), UsageError);
}

TEST(Members, AsTextAndAsNumbers) {
  const Json j = Json::parse(R"({"s":"a","n":1.5,"l":[1,"x"],"z":null,"b":true})");
  EXPECT_EQ(text_of(j, "s"), "a");
  EXPECT_EQ(text_of(j, "n"), "1.5");
  EXPECT_EQ(text_of(j, "l"), "[1,\"x\"]");
  EXPECT_EQ(text_of(j, "z", "none"), "none");
  EXPECT_EQ(text_of(j, "absent", "none"), "none");
  EXPECT_EQ(text_of(Json::array(), "s", "none"), "none");
  EXPECT_EQ(number_of(j, "n"), 1.5);
  for (const char* key : {"s", "l", "z", "b", "absent"}) EXPECT_TRUE(std::isnan(number_of(j, key))) << key;
  EXPECT_TRUE(std::isnan(number_of(Json(3), "n")));
}

TEST(Asset, UnknownNameThrows) {
  const GoldenMessages golden;
  EXPECT_NOTED(asset("nothing"), Error);
}

TEST(Thin, KeepsTheSpike) {
  Points points;
  for (int i = 0; i < 100000; ++i) points.emplace_back(i, i == 77777 ? 50.0 : 1.0);
  const Points kept = thin(points, 640);
  EXPECT_LE(kept.size(), 1282u);
  EXPECT_EQ(kept.back().first, 99999);
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const auto& p) { return p.second == 50.0; }));
}

// For any points, thin() keeps a subset in order, with the least, the greatest and a sign of the gaps, within the
// limit.
RC_GTEST_PROP(Thin, KeepsExtremesGapsAndOrder, (const std::vector<int>& values)) {
  const auto columns = static_cast<std::size_t>(*rc::gen::inRange(1, 20));
  Points points;
  for (std::size_t i = 0; i < values.size(); ++i)
    points.emplace_back(static_cast<double>(i), values[i] % 7 == 0 ? std::nan("") : values[i]);
  const Points kept = thin(points, columns);
  RC_ASSERT(kept.size() <= 3 * columns + 2);
  if (points.empty()) return;  // RC_ASSERT evaluates both sides of ||
  RC_ASSERT(kept.front().first == points.front().first);
  RC_ASSERT(kept.back().first == points.back().first);
  std::pair<double, double> all{1e300, -1e300}, some = all;
  bool gap = false, kept_gap = false;
  for (const auto& [x, y] : points) {
    gap = gap || std::isnan(y);
    if (!std::isnan(y)) all = {std::min(all.first, y), std::max(all.second, y)};
  }
  double before = -1;
  for (const auto& [x, y] : kept) {
    RC_ASSERT(x > before);
    before = x;
    kept_gap = kept_gap || std::isnan(y);
    if (!std::isnan(y)) some = {std::min(some.first, y), std::max(some.second, y)};
  }
  RC_ASSERT(all == some);
  RC_ASSERT(gap == kept_gap);
}

}  // namespace
}  // namespace molen::serve
