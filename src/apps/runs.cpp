// molen runs list|show|compare
#include <fmt/format.h>

#include <algorithm>

#include "apps/cli.h"
#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "store/metrics.h"

namespace molen::apps {
namespace {

std::vector<store::StepMetrics> steps_of(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl"))
    throw UsageError("{}: no metrics.jsonl here; is it a run directory?", run.string());
  return store::read_metrics(run / "metrics.jsonl").steps;
}

int list(const std::string& directory, const std::string& format) {
  if (!fs::is_directory(directory)) throw UsageError("{}: no such directory", directory);
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(directory))
    if (fs::exists(entry.path() / "metrics.jsonl")) runs.push_back(entry.path());
  std::sort(runs.begin(), runs.end());
  Json rows = Json::array();
  for (const auto& run : runs) {
    const auto steps = steps_of(run);
    Json row{{"run", run.filename().string()}, {"steps", steps.empty() ? 0 : steps.back().step}};
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
  fmt::print("{:<28} {:>8} {:>10} {:>12} {:>12}\n", "run", "steps", "loss", "tokens", "tokens/s");
  for (const auto& r : rows)
    fmt::print("{:<28} {:>8} {:>10} {:>12} {:>12}\n", r["run"].get<std::string>(), r["steps"].get<std::int64_t>(),
               r.contains("loss") ? fmt::format("{:.4f}", r["loss"].get<double>()) : "-",
               r.contains("tokens") ? human_count(static_cast<double>(r["tokens"].get<std::int64_t>())) : "-",
               r.contains("tokens_per_s") ? fmt::format("{:.0f}", r["tokens_per_s"].get<double>()) : "-");
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
  for (const auto& [key, value] : last.items()) fmt::print("{:<26} {}\n", key, value.dump());
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
    fmt::print("different: {}\n", difference);
  return difference.empty() ? kOk : kFailed;
}

}  // namespace

void add_runs_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("runs", "recorded runs");
  verb->require_subcommand(1);
  auto directory = std::make_shared<std::string>("runs");
  CLI::App* all = verb->add_subcommand("list", "runs of a directory, with their last step");
  all->add_option("DIR", *directory, "directory of runs")->capture_default_str();
  auto list_format = add_format_option(*all);
  all->callback([&chosen, directory, list_format] { chosen.action = [=] { return list(*directory, *list_format); }; });
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
  two->callback([&chosen, a, b, compare_format] { chosen.action = [=] { return compare(*a, *b, *compare_format); }; });
}

}  // namespace molen::apps
