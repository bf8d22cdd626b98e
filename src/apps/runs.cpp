// molen runs list|show|compare|flight
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/cli.h"
#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "program/excerpt.h"
#include "program/text.h"
#include "store/flight_report.h"
#include "store/metrics.h"
#include "store/watch.h"

namespace molen::apps {
namespace {

std::vector<store::StepMetrics> steps_of(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl"))
    throw UsageError("{}: no metrics.jsonl here; is it a run directory?", run.string());
  return store::read_metrics(run / "metrics.jsonl").steps;
}

// run.tags of the last attempt; none where it is not recorded.
std::vector<std::string> tags_of(const fs::path& run) {
  if (!fs::exists(run / "environment.json")) return {};
  const Json environment = read_json(run / "environment.json");
  std::vector<std::string> tags;
  if (const auto found = environment.find("tags"); found != environment.end() && found->is_array())
    for (const Json& tag : *found)
      if (tag.is_string()) tags.push_back(tag.get<std::string>());
  return tags;
}

int list(const std::string& directory, const std::vector<std::string>& wanted, const std::string& format) {
  if (!fs::is_directory(directory)) throw UsageError("{}: no such directory", directory);
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(directory))
    if (fs::exists(entry.path() / "metrics.jsonl")) runs.push_back(entry.path());
  std::sort(runs.begin(), runs.end());
  Json rows = Json::array();
  for (const auto& run : runs) {
    const auto tags = tags_of(run);
    if (!std::all_of(wanted.begin(), wanted.end(),
                     [&](const auto& tag) { return std::find(tags.begin(), tags.end(), tag) != tags.end(); }))
      continue;
    const auto steps = steps_of(run);
    Json row{{"run", run.filename().string()}, {"steps", steps.empty() ? 0 : steps.back().step}, {"tags", tags}};
    if (!steps.empty())
      row.update({{"loss", steps.back().loss},
                  {"tokens", steps.back().tokens_total},
                  {"tokens_per_s", steps.back().tokens_per_s}});
    rows.push_back(row);
  }
  if (format == "json") {
    fmt::print("{}\n", rows.dump(2));
    return kOk;
  }
  fmt::print("{:<28} {:>8} {:>10} {:>12} {:>12}  {}\n", "run", "steps", "loss", "tokens", "tokens/s", "tags");
  for (const auto& r : rows)
    fmt::print("{:<28} {:>8} {:>10} {:>12} {:>12}  {}\n", printable(r["run"].get_ref<const std::string&>()),
               r["steps"].get<std::int64_t>(),
               r.contains("loss") ? fmt::format("{:.4f}", r["loss"].get<double>()) : "-",
               r.contains("tokens") ? human_count(static_cast<double>(r["tokens"].get<std::int64_t>())) : "-",
               r.contains("tokens_per_s") ? fmt::format("{:.0f}", r["tokens_per_s"].get<double>()) : "-",
               printable(fmt::format("{}", fmt::join(r["tags"].get<std::vector<std::string>>(), ","))));
  return kOk;
}

int show(const std::string& run, const std::string& format) {
  const auto steps = steps_of(run);
  if (steps.empty()) throw UsageError("{}: no step was recorded", run);
  if (format == "json") {
    fmt::print("{}\n", store::to_line(steps.back()));
    return kOk;
  }
  const Json last = parse_json(store::to_line(steps.back()), run);  // items() does not keep it
  for (const auto& [key, value] : last.items()) fmt::print("{:<26} {}\n", key, printable(value.dump()));
  return kOk;
}

int compare(const std::string& a, const std::string& b, const std::string& format) {
  const auto x = steps_of(a), y = steps_of(b);
  const std::string difference = store::first_difference(x, y);
  if (format == "json")
    fmt::print("{}\n", Json{{"a", a},
                            {"b", b},
                            {"identical", difference.empty()},
                            {"steps", x.size()},
                            {"first_difference", difference.empty() ? Json(nullptr) : Json(difference)}}
                           .dump(2));
  else if (difference.empty())
    fmt::print("identical: {} steps\n", x.size());
  else
    fmt::print("different: {}\n", printable(difference));
  return difference.empty() ? kOk : kFailed;
}

constexpr std::int64_t kMostNamed = 3 << 20;  // ops and edges of a program

// The programs of a run, one for each stage of a pipeline, by their digests.
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
      // Its ops have numbers only; the records still tell who holds up whom.
      fmt::print(stderr, "{}\n", error.what());
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
  // Ranks that beat four times a second have beaten between the two looks.
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
  CLI::App* all = verb->add_subcommand("list", "runs of a directory, with their last step");
  all->add_option("DIR", *directory, "directory of runs")->capture_default_str();
  auto tags = std::make_shared<std::vector<std::string>>();
  all->add_option("--tag", *tags, "only runs with this tag (run.tags); may be repeated, all must be there")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  auto list_format = add_format_option(*all);
  all->callback([&chosen, directory, tags, list_format] {
    chosen.action = [=] { return list(*directory, *tags, *list_format); };
  });
  auto run = std::make_shared<std::string>();
  CLI::App* one = verb->add_subcommand("show", "the last step of a run");
  one->add_option("RUN", *run, "run directory")->required();
  auto show_format = add_format_option(*one);
  one->callback([&chosen, run, show_format] { chosen.action = [=] { return show(*run, *show_format); }; });
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>();
  CLI::App* two = verb->add_subcommand("compare", "identical bit for bit, or the first difference (exit 1)");
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
