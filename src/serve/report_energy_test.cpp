// Tests the parts of a report about energy, policies and predictions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "serve/page.h"
#include "serve/run_data.h"
#include "serve/test_report.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

// A step in which a GPU's counter counted 900 J.
store::StepMetrics measured_step() {
  store::StepMetrics m;
  m.step = 1;
  m.energy_j = {{"gpu0", 900.0}};
  m.energy_source = {{"gpu0", "counter"}};
  return m;
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
  store::StepMetrics m = measured_step();
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
  write("metrics.jsonl", store::to_line(measured_step()) + "\n");
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

TEST_F(Report, ShowsTheJoulesOfOpsLayersAndStages) {
  write("metrics.jsonl", store::to_line(measured_step()) + "\n");
  Json ops, layers{{"other", 1.0}, {"final", 90.0}, {"layers 10-19", 20.0}, {"layers 0-9", 30.0}, {"embed", 5.0}};
  for (int i = 0; i < 20; ++i) ops["op" + std::to_string(i)] = 1.0 + i;
  Json scope{{"joules", 1000.0},
             {"entries",
              {{"forward", {{"joules", 210.0}, {"ops", ops}}},
               {"back", {{"joules", 400.0}, {"ops", {{"a<b", 400.0}}}}},
               {"base", {{"joules", 390.0}}}}},
             {"layers", layers},
             {"stages", {{"0", 250.0}, {"1", 360.0}}}};
  const auto shown = [&] {
    write("energy.jsonl", Json{{"event", "phases"}, {"scopes", {{"gpu0", scope}}}}.dump() + "\n");
    const std::string html = page();
    const auto from = html.find("<details><summary>By op");
    return from == std::string::npos ? "" : html.substr(from, html.find("</details>", from) - from);
  };
  std::string text = shown();
  const auto at = [&](const std::string& what) {
    EXPECT_NE(text.find(what), std::string::npos) << what << " in " << text;
    return text.find(what);
  };
  EXPECT_LT(at("<th scope=row>a&lt;b<td class=text>back<td>0.4 kJ<td>40.0%"),
            at("<th scope=row>op19<td class=text>forward<td>0.02 kJ<td>2.0%"));
  // The 15 greatest are shown: a<b, and those of 20 to 7 J. The other six have 1 to 6 J.
  at("<th scope=row>op6<");
  EXPECT_EQ(text.find("<th scope=row>op5<"), std::string::npos);
  at("<th scope=row>6 others<td><td>0.021 kJ<td>2.1%");
  EXPECT_LT(at("<th scope=row>embed<td>0.005 kJ<td>0.5%"), at("<th scope=row>layers 0-9<td>0.03 kJ<td>3.0%"));
  EXPECT_LT(at("<th scope=row>layers 0-9"), at("<th scope=row>layers 10-19"));
  EXPECT_LT(at("<th scope=row>layers 10-19"), at("<th scope=row>final"));
  EXPECT_LT(at("<th scope=row>final"), at("<th scope=row>other"));
  at("<th scope=row>stage 1<td>0.36 kJ<td>36.0%");
  scope["stages"] = {{"0", 610.0}};
  text = shown();
  EXPECT_EQ(text.find("stage 0"), std::string::npos) << "one stage has all";
  for (auto& [name, entry] : scope["entries"].items()) entry.erase("ops");
  EXPECT_EQ(shown(), "") << "records of older versions";
  scope["entries"]["forward"]["ops"] = Json::array({1}), scope["layers"] = 7,
  scope["stages"] = {{"x", "y"}, {"z", 1}, {"v", 1}};
  scope["entries"]["back"]["ops"] = {{"good", 1.0}, {"bad", "text"}};
  text = shown();
  at("good"), at("<th scope=row>stage z");
  EXPECT_EQ(text.find("bad"), std::string::npos);
}

// With a GPU for each stage, no GPU shows how the stages differ. A scope that does not count is in no sum.
TEST_F(Report, ShowsTheStagesOfAllCountedScopes) {
  write("metrics.jsonl", store::to_line(measured_step()) + "\n");
  Json scopes;
  for (int gpu = 0; gpu < 3; ++gpu)
    scopes["gpu" + std::to_string(gpu)] = {
        {"joules", 500.0},
        {"entries", {{"forward", {{"joules", 200.0}, {"ops", {{"down", 200.0}}}}}, {"base", {{"joules", 300.0}}}}},
        {"layers", {{"layer " + std::to_string(gpu), 200.0}}},
        {"stages", {{std::to_string(gpu), 200.0 + gpu}}}};
  const auto shown = [&](const Json& summed) {
    write("energy.jsonl", Json{{"event", "totals"}, {"total_j", 1.0}, {"summed", summed}}.dump() + "\n" +
                              Json{{"event", "phases"}, {"scopes", scopes}}.dump() + "\n");
    const std::string html = page();
    const auto from = html.find("Where the joules of all counted scopes went");
    return from == std::string::npos ? "" : html.substr(from, html.find("</details>", from) - from);
  };
  const std::string two = shown({"gpu0", "gpu1"});
  for (const char* row :
       {"<th scope=row>down<td class=text>forward<td>0.4 kJ<td>40.0%", "<th scope=row>stage 0<td>0.2 kJ<td>20.0%",
        "<th scope=row>stage 1<td>0.201 kJ<td>20.1%", "<th scope=row>layer 1<td>0.2 kJ"})
    EXPECT_NE(two.find(row), std::string::npos) << row << " in " << two;
  EXPECT_EQ(two.find("stage 2"), std::string::npos);
  EXPECT_EQ(shown({"gpu0"}), "");
  for (const Json& damage : {Json(7), Json{{"gpu0", 7}}, Json{"gpu0", 7, "other"}})
    EXPECT_EQ(shown(damage), "") << damage;
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

}  // namespace
}  // namespace molen::serve
