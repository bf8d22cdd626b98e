#include "tune/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_fields.h"

namespace molen::tune {
namespace {

using Kind = plan::Outcome::Kind;
constexpr std::array kOutcomes{std::pair{Kind::kStep, "step"}, std::pair{Kind::kOutOfMemory, "out_of_memory"},
                               std::pair{Kind::kRefused, "refused"}, std::pair{Kind::kFailed, "failed"},
                               std::pair{Kind::kNotCalibrated, "not_calibrated"}};

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

std::optional<double> optional_number(const JsonFields& fields, std::string_view key) {
  return fields.find(key) ? std::optional(fields.number(key)) : std::nullopt;
}

// Returns what differs between two searches, in words; empty if nothing does.
std::string difference_of(const Json& there, const Json& here) {
  if (there.value("configuration", Json()) != here["configuration"]) {
    const auto changes = config::diff(config::from_json(there.value("configuration", Json::object()), "tune.jsonl"),
                                      config::from_json(here["configuration"], "tune.jsonl"));
    if (!changes.empty())
      return fmt::format("{} = {} there and {} here", changes.front().key, changes.front().before,
                         changes.front().after);
  }
  for (const auto& [key, value] : here.items()) {
    const Json other = there.value(key, Json());
    if (other == value) continue;
    if (key == "conditions") return "the description of the cluster, or the launcher and its steps";
    if (key == "configuration") return "the configuration";
    return fmt::format("{} = {} there and {} here", key, other.dump(), value.dump());
  }
  return "";
}

store::LeaseOptions search_lease(const std::function<void(const std::string&)>& warn) {
  store::LeaseOptions options;
  options.advice = "give this search another folder (--output)";
  options.waiting = warn;
  return options;
}

}  // namespace

std::string_view outcome_name(Kind kind) {
  return std::ranges::find(kOutcomes, kind, &std::pair<Kind, const char*>::first)->second;
}

Json header_of(const SearchPlan& plan, const Conditions& conditions) {
  Json header{{"format", "molen-tune"},
              {"format_version", 1},
              {"objective", name_of(plan.objective)},
              {"seed", plan.seed},
              {"cluster", conditions.cluster.empty() ? Json() : Json(conditions.cluster)},
              {"conditions", sha256_hex(conditions.text)},
              {"ranks", plan.space.find(kNodes) ? Json() : Json(plan.job.ranks)},
              {"space", to_json(plan.space)},
              {"configuration", config::to_json(plan.base)}};
  // Headers of earlier versions lack it, and of a search without it too.
  if (plan.noise_scale > 0.0) header["noise_scale_tokens"] = plan.noise_scale;
  return header;
}

Json to_json(const Trial& trial, const SearchPlan& plan) {
  const plan::Outcome& o = trial.outcome;
  Json line{{"trial", trial.number}, {"keys", plan.space.keys(trial.point)}, {"outcome", outcome_name(o.kind)}};
  line["why"] = o.why.empty() ? Json() : Json(o.why);
  line["memory_bytes"] = o.memory ? Json(o.memory->value) : Json();
  line["memory_room_bytes"] = o.room ? Json(o.room->value) : Json();
  if (!o.log.empty()) line["log"] = o.log;
  if (!trial.has_step()) return line;
  const plan::StepFigures& f = o.figures;
  line["objective"] = figure_of(plan.objective, f, plan.noise_scale);
  line["step_s"] = f.step_s, line["step_s_low"] = f.low_s, line["step_s_high"] = f.high_s;
  line["tokens"] = f.tokens, line["ranks"] = f.ranks;
  line["tokens_per_s_per_device"] = f.tokens_per_s_per_device();
  line["mfu"] = or_null(f.mfu), line["step_j"] = or_null(f.step_j);
  line["energy_coverage"] = f.energy_coverage.empty() ? Json() : Json(f.energy_coverage);
  line["layout"] = f.layout;
  if (!f.extrapolated.empty()) line["extrapolated"] = f.extrapolated;
  return line;
}

Trial trial_from_json(const Json& json, const SearchPlan& plan, std::string_view origin) {
  const JsonFields line(json, std::string(origin));
  Trial trial;
  const std::int64_t number = line.integer("trial");
  if (number < 1 || number > kMostTrials)
    throw UsageError("{}: trial {}: numbers are 1 to {}", origin, number, kMostTrials);
  trial.number = static_cast<int>(number), trial.kept = true;
  trial.point = plan.space.point_of(json_member(json, "keys", origin), origin);
  plan::Outcome& o = trial.outcome;
  const std::string name = line.text("outcome");
  const auto* outcome = std::ranges::find(kOutcomes, name, &std::pair<Kind, const char*>::second);
  if (outcome == kOutcomes.end()) throw UsageError("{}: the outcome '{}' is unknown", origin, name);
  o.kind = outcome->first, o.why = line.text("why", "");
  if (line.find("memory_bytes")) o.memory = Bytes(line.integer("memory_bytes"));
  if (line.find("memory_room_bytes")) o.room = Bytes(line.integer("memory_room_bytes"));  // earlier versions lack it
  if (json.contains("log")) {
    const Json& log = json["log"];
    if (!log.is_array() || !std::ranges::all_of(log, [](const Json& text) { return text.is_string(); }))
      throw UsageError("{}: log: expected a list of texts", origin);
    o.log = log.get<std::vector<std::string>>();
  }
  if (!trial.has_step()) return trial;
  plan::StepFigures& f = o.figures;
  f.step_s = line.number("step_s"), f.low_s = line.number("step_s_low"), f.high_s = line.number("step_s_high");
  f.tokens = line.integer("tokens");
  const std::int64_t ranks = line.integer("ranks");
  if (f.step_s <= 0.0 || f.tokens < 1 || ranks < 1 || ranks > 1000000000)
    throw UsageError("{}: a step needs step_s, tokens and ranks above 0", origin);
  f.ranks = static_cast<int>(ranks);
  f.mfu = optional_number(line, "mfu"), f.step_j = optional_number(line, "step_j");
  f.energy_coverage = line.text("energy_coverage", ""), f.layout = line.text("layout");
  f.extrapolated = line.text("extrapolated", "");
  return trial;
}

Journal::Journal(const fs::path& folder, const SearchPlan& plan, const Conditions& conditions,
                 const std::function<void(const std::string&)>& warn)
    : path_(folder / "tune.jsonl"), lease_(folder, search_lease(warn)), plan_(plan) {
  const Json header = header_of(plan, conditions);
  const bool begun = path_exists(path_) && !read_file(path_, std::int64_t{1} << 30).empty();
  if (begun) read(plan, header);
  lines_ = std::make_unique<store::LineWriter>(path_, [](const std::string& text) { throw Error("{}", text); });
  if (begun) return;
  lines_->append(header.dump());
  lines_->sync();
}

void Journal::read(const SearchPlan& plan, const Json& header) {
  bool first = true;
  std::map<Point, int> numbers;
  store::each_line(path_, [&](std::string_view text, std::int64_t number) {
    const std::string origin = fmt::format("{}:{}", path_.string(), number);
    if (first) {
      first = false;
      const Json there = parse_json(text, origin);
      if (!there.is_object() || there.value("format", Json()) != "molen-tune")
        throw UsageError("{}: no journal of `molen tune`; name another folder (--output)", origin);
      if (const std::string difference = difference_of(there, header); !difference.empty())
        throw UsageError("--output: {} is of another search, which differs in {}; name another folder", path_.string(),
                         difference);
      return;
    }
    Json line;
    try {
      line = parse_json(text, origin);
    } catch (const UsageError&) {  // cut short when an earlier start was killed; its trial runs again
      return;
    }
    const Trial trial = trial_from_json(line, plan, origin);
    const auto [known, is_new] = numbers.emplace(trial.point, trial.number);
    if (!is_new || !kept_.emplace(trial.number, trial).second)
      throw UsageError("{}: trial {} or its point is there twice", origin, trial.number);
  });
}

void Journal::append(const Trial& trial) {
  require();

  lines_->append(to_json(trial, plan_).dump());
  lines_->sync();
}

}  // namespace molen::tune
