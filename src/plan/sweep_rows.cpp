// The forms of an experiment's rows: sweep.jsonl, sweep.csv, and the table of a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/csv.h"
#include "base/error.h"
#include "plan/framework.h"
#include "plan/sweep.h"

namespace molen::plan {
namespace {

constexpr std::array kOutcomeKinds{Outcome::Kind::kStep, Outcome::Kind::kOutOfMemory, Outcome::Kind::kRefused,
                                   Outcome::Kind::kFailed, Outcome::Kind::kNotCalibrated};

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

Json null_or(const std::optional<double>& figure) {
  return figure ? Json(*figure) : Json();
}
Json null_or(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}
Json null_or(int count) {
  return count > 0 ? Json(count) : Json();
}

std::optional<double> joules_of_token(const TrialRow& row) {
  const StepFigures& f = row.outcome.figures;
  if (!row.has_step() || !f.step_j) return std::nullopt;
  return *f.step_j / static_cast<double>(f.tokens);
}

// The ranks that a trial had, or would have had.
int ranks_of(const TrialRow& row) {
  return row.has_step() ? row.outcome.figures.ranks : row.size.ranks;
}

// Sets the members of a step in a line of sweep.jsonl. Those of a trial without a step are null.
void add_step(Json& line, const SweepPlan& plan, const TrialRow& row) {
  const StepFigures& f = row.outcome.figures;
  const bool step = row.has_step();
  const auto figure = [&](double value) { return step ? Json(value) : Json(); };
  line["layout"] = null_or(f.layout);
  line["step_s"] = figure(f.step_s);
  line["step_s_low"] = figure(f.low_s);
  line["step_s_high"] = figure(f.high_s);
  line["tokens"] = step ? Json(f.tokens) : Json();
  line["tokens_per_s"] = step ? Json(static_cast<double>(f.tokens) / f.step_s) : Json();
  line["tokens_per_s_per_device"] = step ? Json(f.tokens_per_s_per_device()) : Json();
  line["loss_s_per_mtoken"] = step && plan.noise_scale > 0.0 ? Json(f.loss_time_s(plan.noise_scale)) : Json();
  line["mfu"] = step ? null_or(f.mfu) : Json();
  line["kwh_per_step"] = step ? null_or(f.kwh()) : Json();
  line["j_per_token"] = null_or(joules_of_token(row));
  line["energy_coverage"] = null_or(f.energy_coverage);
  line["extrapolated"] = null_or(f.extrapolated);
}

const Json& member_of(const Json& line, const char* key, std::string_view origin, bool (Json::*is)() const,
                      const char* expected) {
  const Json& value = json_member(line, key, origin);
  if (!value.is_null() && !(value.*is)())
    throw UsageError("{}: \"{}\": expected {} or null, got {}", origin, key, expected, value.dump());
  return value;
}

double number_in(const Json& line, const char* key, std::string_view origin) {
  const Json& value = member_of(line, key, origin, &Json::is_number, "a number");
  return value.is_null() ? 0.0 : value.get<double>();
}
std::optional<double> optional_in(const Json& line, const char* key, std::string_view origin) {
  const Json& value = member_of(line, key, origin, &Json::is_number, "a number");
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}
std::string text_in(const Json& line, const char* key, std::string_view origin) {
  const Json& value = member_of(line, key, origin, &Json::is_string, "a text");
  return value.is_null() ? "" : value.get<std::string>();
}
std::int64_t count_in(const Json& line, const char* key, std::string_view origin) {
  const Json& value = member_of(line, key, origin, &Json::is_number_integer, "a whole number");
  return value.is_null() ? 0 : value.get<std::int64_t>();
}

// A name such as FULL_SHARD says by itself what it is a value of; a number, true or none does not.
bool names_itself(std::string_view value) {
  return std::ranges::all_of(value, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
}

std::string json_cell(const Json& value) {
  if (value.is_null()) return "";
  return csv_cell(value.is_string() ? value.get<std::string>() : value.dump());
}

// The columns of the table behind the values of the grid and the sizes: header, and the cell of a row with a step.
struct ShownColumn {
  std::string header;
  std::function<std::string(const TrialRow&)> cell;
};

std::vector<ShownColumn> shown_columns(const SweepPlan& plan) {
  const auto number = [](const std::optional<double>& value, fmt::string_view format) {
    return value ? fmt::vformat(format, fmt::make_format_args(*value)) : std::string("-");
  };
  const auto percent = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.1f}%", 100.0 * *share) : std::string("-");
  };
  std::vector<ShownColumn> columns{
      {"step", [](const TrialRow& r) { return human(Seconds(r.outcome.figures.step_s)); }},
      {interval_name(plan.measured),
       [](const TrialRow& r) {
         return fmt::format("{} - {}", human(Seconds(r.outcome.figures.low_s)),
                            human(Seconds(r.outcome.figures.high_s)));
       }},
      {"tokens/s a device",
       [](const TrialRow& r) { return fmt::format("{:.0f}", r.outcome.figures.tokens_per_s_per_device()); }},
      {"MFU", [=](const TrialRow& r) { return percent(r.outcome.figures.mfu); }},
      {"kWh/step", [=](const TrialRow& r) { return number(r.outcome.figures.kwh(), "{:.3g}"); }},
      {"J/token", [=](const TrialRow& r) { return number(joules_of_token(r), "{:.3g}"); }},
      {"memory", [](const TrialRow& r) { return r.outcome.memory ? human(*r.outcome.memory) : "-"; }}};
  if (plan.noise_scale > 0.0)
    columns.insert(columns.begin() + 2, {"time to loss", [noise = plan.noise_scale](const TrialRow& r) {
                                           return human(Seconds(r.outcome.figures.loss_time_s(noise)));
                                         }});
  if (plan.scaling != Scaling::kNone) {
    columns.push_back({"speed-up", [=](const TrialRow& r) { return number(r.speed_up, "{:.2f}"); }});
    columns.push_back({"ideal", [=](const TrialRow& r) { return number(r.ideal, "{:.2f}"); }});
    columns.push_back({"efficiency", [=](const TrialRow& r) { return percent(r.efficiency); }});
  }
  return columns;
}

}  // namespace

std::string interval_name(bool measured) {
  return measured ? "10th - 90th percentile" : "80 % likely";
}

std::string name_of(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::kStep:
      return "step";
    case Outcome::Kind::kOutOfMemory:
      return "out of memory";
    case Outcome::Kind::kRefused:
      return "refused";
    case Outcome::Kind::kFailed:
      return "failed";
    case Outcome::Kind::kNotCalibrated:
      return "not calibrated";
  }
  return "";
}

Json to_json(const SweepPlan& plan, const TrialRow& row) {
  Json line{{"trial", row.trial},
            {"source", plan.measured ? "measured" : "predicted"},
            {"cluster", null_or(plan.cluster)},
            {"cpu", null_or(row.outcome.machine.cpu)},
            {"device", null_or(row.outcome.machine.device)},
            {"molen", null_or(row.outcome.machine.molen)},
            {"model", null_or(row.model)},
            {"keys", row.keys},
            {"nodes", null_or(row.size.nodes)},
            {"ranks", null_or(ranks_of(row))},
            {"noise_scale_tokens", plan.noise_scale > 0.0 ? Json(plan.noise_scale) : Json()},
            {"batch_global", row.global_batch > 0 ? Json(row.global_batch) : Json()},
            {"outcome", underscored(name_of(row.outcome.kind))},
            {"why", null_or(row.outcome.why)}};
  line["log"] = row.outcome.log.empty() ? Json() : Json(row.outcome.log);
  add_step(line, plan, row);
  line["memory_bytes"] = row.outcome.memory ? Json(row.outcome.memory->value) : Json();
  line["run"] = null_or(row.run);
  line["speed_up"] = null_or(row.speed_up);
  line["ideal_speed_up"] = null_or(row.ideal);
  line["efficiency"] = null_or(row.efficiency);
  return line;
}

TrialRow row_from_json(const Json& line, std::string_view origin) {
  if (!line.is_object()) throw UsageError("{}: expected an object", origin);
  TrialRow row;
  row.trial = text_in(line, "trial", origin);
  row.run = text_in(line, "run", origin);
  Outcome& o = row.outcome;
  const std::string name = text_in(line, "outcome", origin);
  const auto kind = std::find_if(kOutcomeKinds.begin(), kOutcomeKinds.end(),
                                 [&](Outcome::Kind k) { return underscored(name_of(k)) == name; });
  if (kind == kOutcomeKinds.end()) throw UsageError("{}: \"outcome\": unknown value \"{}\"", origin, name);
  o.kind = *kind;
  o.why = text_in(line, "why", origin);
  if (const std::int64_t bytes = count_in(line, "memory_bytes", origin); bytes > 0) o.memory = Bytes(bytes);
  StepFigures& f = o.figures;
  f.layout = text_in(line, "layout", origin);
  f.step_s = number_in(line, "step_s", origin);
  f.low_s = number_in(line, "step_s_low", origin), f.high_s = number_in(line, "step_s_high", origin);
  f.tokens = count_in(line, "tokens", origin);
  f.ranks = static_cast<int>(count_in(line, "ranks", origin));
  f.mfu = optional_in(line, "mfu", origin);
  if (const auto kwh = optional_in(line, "kwh_per_step", origin)) f.step_j = *kwh * 3.6e6;
  f.energy_coverage = text_in(line, "energy_coverage", origin);
  // Files of earlier versions lack these.
  const auto later = [&](const char* key) { return line.contains(key) ? text_in(line, key, origin) : ""; };
  o.machine = {later("cpu"), later("device"), later("molen")};
  f.extrapolated = later("extrapolated");
  if (row.has_step() && (f.step_s <= 0.0 || f.tokens < 1 || f.ranks < 1))
    throw UsageError("{}: a step needs \"step_s\", \"tokens\" and \"ranks\" above 0", origin);
  return row;
}

std::string to_csv(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> names, cells;
    const Json line = to_json(plan, rows[i]);
    for (const auto& [key, value] : line.items()) {
      if (key == "keys") {
        for (const auto& [grid_key, grid_value] : value.items()) {
          names.push_back(json_cell(grid_key));
          cells.push_back(json_cell(grid_value));
        }
        continue;
      }
      names.push_back(key);
      cells.push_back(json_cell(value));
    }
    if (i == 0) text += fmt::format("{}\n", fmt::join(names, ","));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

std::vector<std::vector<std::string>> table_of(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  const auto columns = shown_columns(plan);
  const bool sizes = plan.scaling != Scaling::kNone, nodes = plan.sizes.front().nodes > 0;
  std::vector<std::string> header;
  for (const std::string& name : short_names(plan.grid)) header.push_back(name);
  if (sizes) header.insert(header.end(), {nodes ? "nodes" : "ranks", "batch"});
  for (const auto& column : columns) header.push_back(column.header);
  header.push_back("layout");
  std::vector<std::vector<std::string>> table{header};
  for (const TrialRow& row : rows) {
    std::vector<std::string> cells = row.point;
    if (sizes)
      cells.insert(cells.end(), {std::to_string(row.size.amount()),
                                 row.global_batch > 0 ? std::to_string(row.global_batch) : std::string("-")});
    for (const auto& column : columns) cells.push_back(row.has_step() ? column.cell(row) : "-");
    cells.push_back(row.has_step() ? row.outcome.figures.layout
                                   : fmt::format("{}: {}", name_of(row.outcome.kind),
                                                 row.outcome.why.substr(0, row.outcome.why.find('\n'))));
    table.push_back(std::move(cells));
  }
  return table;
}

std::vector<std::string> machines_of(const std::vector<TrialRow>& rows) {
  std::vector<std::string> machines;
  for (const TrialRow& row : rows) {
    const TrialMachine& m = row.outcome.machine;
    if (!row.has_step() || m == TrialMachine()) continue;
    std::string text = fmt::format("{} ({})", m.device, m.cpu);
    if (std::ranges::find(machines, text) == machines.end()) machines.push_back(std::move(text));
  }
  return machines;
}

std::optional<std::string> framework_of(const std::vector<TrialRow>& rows) {
  std::set<std::string> kinds;
  for (const TrialRow& row : rows)
    if (!row.framework.empty()) kinds.insert(row.framework);
  return kinds.size() == 1 ? std::optional(*kinds.begin()) : std::nullopt;
}

std::string title_of(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  std::string model;
  for (const TrialRow& row : rows) {
    if (row.model.empty() || row.model == model) continue;
    if (!model.empty()) {
      model = "several models";
      break;
    }
    model = row.model;
  }
  const JobSize& first = plan.sizes.front();
  const std::string size = plan.sizes.size() > 1 || first.amount() == 0 ? ""
                           : first.nodes > 0                            ? counted(first.nodes, "node")
                                                                        : counted(first.ranks, "rank");
  std::string title = model + framework_text(" with ", framework_of(rows).value_or("molen"));
  const char* scaling = plan.scaling == Scaling::kStrong ? "strong scaling of "
                        : plan.scaling == Scaling::kWeak ? "weak scaling of "
                                                         : "";
  title = scaling + title;
  if (!size.empty()) title += " on " + size;
  if (!plan.cluster.empty()) title += (size.empty() ? " on " : " of ") + plan.cluster;
  return title + (plan.measured ? ", measured" : ", predicted");
}

std::string label_of(const SweepPlan& plan, const TrialRow& row, std::optional<std::size_t> without) {
  const auto names = short_names(plan.grid);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < plan.grid.size(); ++i) {
    if (i == without) continue;
    words.push_back(names_itself(row.point[i]) ? row.point[i] : names[i] + " " + row.point[i]);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace molen::plan
