// molen runs list|show|compare|flight
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/cli.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "program/text/excerpt.h"
#include "program/text/text.h"
#include "serve/facts.h"
#include "store/flight_report.h"
#include "store/lease.h"
#include "store/metrics.h"
#include "store/watch.h"

namespace molen::apps {
namespace {

std::vector<store::StepMetrics> steps_of(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl"))
    throw UsageError("{}: no metrics.jsonl here; is it a run directory?", run.string());
  return store::read_metrics(run / "metrics.jsonl").steps;
}

// Returns "2026-01-02 03:04" from a time stamp.
std::string short_time(const Json& stamp) {
  std::string text = stamp.get<std::string>().substr(0, 16);
  std::replace(text.begin(), text.end(), 'T', ' ');
  return text;
}

// "running", "done" (train.until was reached), "stopped" (before it), or "cut off" (no lease owner, and no recorded
// end).
std::string state_of(const serve::RunData& run) {
  if (!store::lease_owner(run.path).empty()) return "running";
  const serve::Ending end = serve::ending_of(run);
  return !end.stopped ? "cut off" : end.complete ? "done" : "stopped";
}

Json row_of(const fs::path& path, const std::vector<std::string>& tags) {
  const serve::RunData run = serve::read_run(path);
  const auto& steps = run.metrics.steps;
  const serve::Dates when = serve::dates_of(run);
  Json row{{"run", path.filename().string()},
           {"state", state_of(run)},
           {"started", std::isfinite(when.first) ? Json(utc_timestamp(when.first)) : Json()},
           {"last", std::isfinite(when.last) ? Json(utc_timestamp(when.last)) : Json()},
           {"layout", serve::layout_of(run)},
           {"steps", steps.empty() ? 0 : steps.back().step},
           {"tags", tags}};
  if (!steps.empty())
    row.update({{"loss", steps.back().loss},
                {"tokens", steps.back().tokens_total},
                {"tokens_per_s", steps.back().tokens_per_s}});
  return row;
}

int list_runs(const std::string& directory, const std::vector<std::string>& wanted, const std::string& format) {
  if (!fs::is_directory(directory)) throw UsageError("{}: no such directory", directory);
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(directory))
    if (fs::exists(entry.path() / "metrics.jsonl")) runs.push_back(entry.path());
  std::sort(runs.begin(), runs.end());
  Json rows = Json::array();
  for (const auto& run : runs) {
    const auto tags = serve::tags_of(run);
    if (std::all_of(wanted.begin(), wanted.end(),
                    [&](const auto& tag) { return std::find(tags.begin(), tags.end(), tag) != tags.end(); }))
      rows.push_back(row_of(run, tags));
  }
  if (format == "json") {
    fmt::print("{}\n", rows.dump(2));
    return kOk;
  }
  std::vector<std::vector<std::string>> table{
      {"run", "started (UTC)", "state", "steps", "loss", "tokens", "tokens/s", "layout", "tags"}};
  for (const auto& r : rows) {
    const auto number = [&](const char* key, auto&& text) {
      return r.contains(key) && r[key].is_number() ? text(r[key].get<double>()) : std::string("-");
    };
    table.push_back({r["run"].get<std::string>(), r["started"].is_null() ? "-" : short_time(r["started"]),
                     r["state"].get<std::string>(), std::to_string(r["steps"].get<std::int64_t>()),
                     number("loss", [](double v) { return fmt::format("{:.4f}", v); }), number("tokens", human_count),
                     number("tokens_per_s", human_count), r["layout"].get<std::string>(),
                     fmt::format("{}", fmt::join(r["tags"].get<std::vector<std::string>>(), ","))});
  }
  print_columns(table, {3, 4, 5, 6});
  return kOk;
}

// The values of one step's line of metrics, with units, for people to read.
std::vector<std::pair<std::string, std::string>> facts_of(const store::StepMetrics& m) {
  const auto maybe = [](const std::optional<double>& v, const char* format) {
    return v ? fmt::format(fmt::runtime(format), *v) : std::string();
  };
  std::vector<std::pair<std::string, std::string>> facts{
      {"loss", fmt::format("{:.4f} nats a token", m.loss)},
      {"gradient norm", fmt::format("{:.4g}, before clipping", m.grad_norm)},
      {"learning rate", fmt::format("{:.4g}", m.lr)},
      {"loss scale", maybe(m.loss_scale, "{:g}")},
      {"tokens", fmt::format("{} ({})", m.tokens_total, human_count(static_cast<double>(m.tokens_total)))},
      {"samples", fmt::format("{} to {} of the global order", m.samples[0], m.samples[1])},
      {"step time", fmt::format("{}, {} tokens/s, {} a device", human(Seconds(m.step_s)), human_count(m.tokens_per_s),
                                human_count(m.tokens_per_s_per_device))},
      {"MFU", m.mfu
                  ? fmt::format("{:.1f}%{}", 100 * *m.mfu, m.flops_formula.empty() ? "" : " (" + m.flops_formula + ")")
                  : std::string()},
      {"HFU", m.hfu ? fmt::format("{:.1f}%", 100 * *m.hfu) : std::string()},
      {"memory of a rank",
       fmt::format("{} of {} planned", human(Bytes(m.memory_peak_bytes)), human(Bytes(m.memory_planned_bytes)))},
      {"energy", maybe(m.j_per_token, "{:.3g} J a token")}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

int show_run(const std::string& path, const std::string& format) {
  const auto steps = steps_of(path);
  if (steps.empty()) throw UsageError("{}: no step was recorded", path);
  const store::StepMetrics& last = steps.back();
  if (format == "json") {
    fmt::print("{}\n", store::to_line(last));
    return kOk;
  }
  const serve::RunData run = serve::read_run(path);
  const serve::Dates when = serve::dates_of(run);
  const std::string ending = serve::ending_of(run).text;
  std::vector<std::vector<std::string>> table{{"run", path}};
  const auto add = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) table.push_back({name, text});
  };
  add("state", state_of(run) + (ending.empty() ? "" : ": " + ending));
  add("model", serve::model_of(run));
  add("layout", serve::layout_of(run));
  if (std::isfinite(when.first))
    add("dates", fmt::format("{} to {}, {} attempt{}", utc_timestamp(when.first), utc_timestamp(when.last), when.starts,
                             when.starts == 1 ? "" : "s"));
  add("tags", fmt::format("{}", fmt::join(serve::tags_of(path), ", ")));
  add("last step", std::to_string(last.step));
  for (const auto& [name, text] : facts_of(last)) add("  " + name, text);
  std::vector<std::pair<std::string, double>> phases(last.phase_s.begin(), last.phase_s.end());
  std::stable_sort(phases.begin(), phases.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, seconds] : phases)
    if (seconds > 0)
      add("  " + name, fmt::format("{}, {:.1f}% of the step", human(Seconds(seconds)), 100 * seconds / last.step_s));
  print_columns(table, {});
  return kOk;
}

// The keys whose values differ between the configurations of two runs, except their names; or the reason why they
// cannot be compared.
struct ConfigDifference {
  std::vector<config::Difference> keys;
  std::string unknown;
};
ConfigDifference difference_of(const fs::path& a, const fs::path& b) {
  ConfigDifference d;
  try {
    d.keys = config::diff(config::load(a / "config.toml"), config::load(b / "config.toml"));
    std::erase_if(d.keys, [](const auto& key) { return key.key == "run.name"; });
  } catch (const UsageError& error) {
    d.unknown = error.what();
  }
  return d;
}

// Returns the event by which a budget has last shortened a run's schedule, or null.
Json shrunk_by_budget(const serve::RunData& run) {
  Json last;
  for (const Json& e : run.events)
    if (serve::text_of(e, "event") == "budget" && serve::text_of(e, "action") == "shrink") last = e;
  return last;
}

// Says why train.until is not what the run began with.
void print_shrunk(const char* name, const Json& event) {
  if (event.is_null()) return;
  fmt::print(
      "{}: after step {}, energy.on_budget = \"shrink\" has ended the learning-rate schedule at {} instead of {} "
      "steps\n",
      name, serve::text_of(event, "step"), serve::text_of(event, "paid_steps"), serve::text_of(event, "planned_steps"));
}

Json difference_json(const ConfigDifference& d) {
  Json rows = Json::array();
  for (const auto& key : d.keys)
    rows.push_back({{"key", key.key},
                    {"a", key.before},
                    {"b", key.after},
                    {"decides_numbers", key.effect == config::Effect::kNumbers}});
  return rows;
}

void print_difference(const ConfigDifference& d) {
  if (!d.unknown.empty()) {
    fmt::print("\nconfigurations: {}\n", d.unknown);
    return;
  }
  if (d.keys.empty()) {
    fmt::print("\nconfigurations: the same\n");
    return;
  }
  fmt::print("\n");
  std::vector<std::vector<std::string>> table{{"configuration", "a", "b", ""}};
  for (const auto& key : d.keys)
    table.push_back(
        {key.key, key.before, key.after, key.effect == config::Effect::kNumbers ? "decides the numbers" : ""});
  print_columns(table, {});
}

// Returns the change from a to b, "+12.5%"; "" when they cannot be compared.
std::string beside(const std::optional<double>& a, const std::optional<double>& b) {
  return a && b && *a != 0 ? fmt::format("{:+.1f}%", 100 * (*b - *a) / std::abs(*a)) : "";
}

int compare(const std::string& a, const std::string& b, const std::string& format) {
  const auto x = steps_of(a), y = steps_of(b);
  const std::string difference = store::first_difference(x, y);
  const ConfigDifference configs = difference_of(a, b);
  const serve::RunData run_a = serve::read_run(a), run_b = serve::read_run(b);
  const Json shrunk_a = shrunk_by_budget(run_a), shrunk_b = shrunk_by_budget(run_b);
  const auto of_a = serve::figures_of(run_a), of_b = serve::figures_of(run_b);
  const int code = difference.empty() ? kOk : kFailed;
  if (format == "json") {
    Json figures = Json::array();
    for (std::size_t i = 0; i < of_a.size(); ++i)
      figures.push_back({{"figure", of_a[i].name},
                         {"a", of_a[i].value ? Json(*of_a[i].value) : Json()},
                         {"b", of_b[i].value ? Json(*of_b[i].value) : Json()}});
    fmt::print("{}\n", Json{{"a", a},
                            {"b", b},
                            {"identical", difference.empty()},
                            {"steps", x.size()},
                            {"first_difference", difference.empty() ? Json(nullptr) : Json(difference)},
                            {"configuration", configs.unknown.empty() ? difference_json(configs) : Json(nullptr)},
                            {"shrunk_by_budget", {{"a", shrunk_a}, {"b", shrunk_b}}},
                            {"figures", figures}}
                           .dump(2));
    return code;
  }
  if (difference.empty())
    fmt::print("identical: {} step{}\n", x.size(), x.size() == 1 ? "" : "s");
  else
    fmt::print("different: {}\n", printable(difference));
  print_difference(configs);
  print_shrunk("a", shrunk_a), print_shrunk("b", shrunk_b);
  std::vector<std::vector<std::string>> table{{"figure", "a", "b", "b beside a"}};
  for (std::size_t i = 0; i < of_a.size(); ++i)
    if (of_a[i].value || of_b[i].value)
      table.push_back({of_a[i].name, of_a[i].text, of_b[i].text, beside(of_a[i].value, of_b[i].value)});
  fmt::print("\n");
  print_columns(table, {1, 2, 3});
  return code;
}

constexpr std::int64_t kMostNamed = 3 << 20;  // ops and edges of a program

// The recorded programs of a run, one per pipeline stage, by their digests.
struct Recorded {
  program::Program program;
  std::vector<program::Expanded> ops;
};
std::map<std::string, Recorded> recorded_programs(const fs::path& run) {
  std::map<std::string, Recorded> all;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name != "program.txt" && !(name.starts_with("program-stage-") && name.ends_with(".txt"))) continue;
    try {
      const std::string text = read_file(entry.path(), program::kMaxTextBytes);
      program::Program p = program::parse(text, entry.path().string());
      if (program::expanded_size(p) > kMostNamed)
        throw UsageError("{}: stands for too many ops to name them", entry.path().string());
      Recorded& r = all[sha256_hex(program::without_comments(text))];
      r.program = std::move(p);
      r.ops = program::expand(r.program);
    } catch (const UsageError& error) {
      // Ops of this program are shown by number only; the records still tell which rank holds the others up.
      say(error.what());
    }
  }
  return all;
}

int flight(const std::string& run, const std::string& format) {
  const fs::path directory = fs::path(run) / "flight";
  if (!fs::is_directory(directory)) throw UsageError("{}: no flight/ here; is it a run directory?", run);
  const auto records = store::read_flights(directory);
  const store::FlightIdentity& of = records.front().identity;
  const auto programs = recorded_programs(run);
  const bool known = programs.count(of.program_digest) > 0;
  store::OpTexts texts;
  if (known)
    texts = [&programs](const std::string& digest, int op) -> store::OpText {
      const auto found = programs.find(digest);
      if (found == programs.end()) return {};
      const auto& [program, ops] = found->second;
      return {program::op_title(program, ops, op), program::excerpt(program, ops, op)};
    };
  // A live rank writes four heartbeats a second, so it writes one between the two reads.
  auto seen = store::sight(directory, of, std::chrono::milliseconds(700));
  for (const auto& record : records)
    for (auto& s : seen)
      if (s.flight && s.rank == record.identity.rank)
        for (std::size_t i = 0; i < record.streams.size(); ++i) {
          s.flight->streams[i].records = record.streams[i].records;
          s.flight->streams[i].torn = record.streams[i].torn;
        }
  const auto judgement = store::judge(std::move(seen), texts);
  const fs::path report = directory / fmt::format("report-{}.txt", of.attempt);
  const bool reported = fs::exists(report);
  if (format == "json") {
    Json j{{"run", run}, {"attempt", of.attempt}, {"report", reported ? Json(report.string()) : Json()}};
    j.update(store::to_json(judgement, texts));
    fmt::print("{}\n", j.dump(2));
    return kOk;
  }
  fmt::print("attempt {}: {}", of.attempt, store::to_text(judgement, texts));
  if (!known) fmt::print("\nprogram.txt is not the program of these records: ops are numbers only\n");
  if (reported) fmt::print("\nwritten while it happened: {}\n", report.string());
  return kOk;
}

}  // namespace

void add_runs_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("runs", "recorded runs");
  verb->require_subcommand(1);
  auto directory = std::make_shared<std::string>("runs");
  CLI::App* all = verb->add_subcommand("list", "runs of a directory: when, in what state, how far, on what layout");
  all->add_option("DIR", *directory, "directory of runs")->capture_default_str();
  auto tags = std::make_shared<std::vector<std::string>>();
  all->add_option("--tag", *tags, "only runs with this tag (run.tags); may be repeated, all must be there")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  auto list_format = add_format_option(*all);
  all->callback([&chosen, directory, tags, list_format] {
    chosen.action = [=] { return list_runs(*directory, *tags, *list_format); };
  });
  auto run = std::make_shared<std::string>();
  CLI::App* one = verb->add_subcommand("show", "a run and its last step");
  one->add_option("RUN", *run, "run directory")->required();
  auto show_format = add_format_option(*one);
  one->callback([&chosen, run, show_format] { chosen.action = [=] { return show_run(*run, *show_format); }; });
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>();
  CLI::App* two = verb->add_subcommand(
      "compare",
      "identical bit for bit, or the first difference (exit 1); their configurations and figures beside each other");
  two->add_option("A", *a, "run directory")->required();
  two->add_option("B", *b, "run directory")->required();
  auto compare_format = add_format_option(*two);
  auto flown = std::make_shared<std::string>();
  CLI::App* recorder =
      verb->add_subcommand("flight", "what each rank was doing last, and which one the others waited for");
  recorder->add_option("RUN", *flown, "run directory")->required();
  auto flight_format = add_format_option(*recorder);
  recorder->callback(
      [&chosen, flown, flight_format] { chosen.action = [=] { return flight(*flown, *flight_format); }; });
  two->callback([&chosen, a, b, compare_format] { chosen.action = [=] { return compare(*a, *b, *compare_format); }; });
}

}  // namespace molen::apps
