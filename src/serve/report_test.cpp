#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"
#include "serve/assets.h"
#include "serve/chart.h"
#include "serve/page.h"
#include "serve/run_data.h"
#include "serve/test_report.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

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
