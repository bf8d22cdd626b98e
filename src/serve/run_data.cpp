#include "serve/run_data.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "store/lines.h"

namespace molen::serve {
namespace {

std::map<std::string, double> numbers_of(const Json& object, const std::string& key) {
  std::map<std::string, double> found;
  if (object.contains(key) && object[key].is_object())
    for (const auto& [name, value] : object[key].items())
      if (value.is_number()) found[name] = value.get<double>();
  return found;
}

// A resumed run validates a step again. The last validation counts, as with metrics.
void take_validation(const Json& event, std::map<std::int64_t, Validation>& validations) {
  const double step = number_of(event, "step");
  if (!(std::abs(step) < 1e15)) return;
  const auto whole = static_cast<std::int64_t>(step);
  validations[whole] = {whole, number_of(event, "loss"), numbers_of(event, "bits_per_byte")};
}

// An attempt that resumes from an earlier step drops the validations beyond that step, as with metrics.
void take_start(const Json& event, std::map<std::int64_t, Validation>& validations) {
  const double step = number_of(event, "step");
  if (!(std::abs(step) < 1e15)) return;
  validations.erase(validations.upper_bound(static_cast<std::int64_t>(step)), validations.end());
}

// The number of bytes of a long file that are read at its start and at its end. Each holds some ten thousand events. No
// sensible run has more, and a page with more would help nobody.
constexpr std::int64_t kEventBytes = std::int64_t{4} << 20;

void read_events(const fs::path& path, RunData& run) {
  std::map<std::int64_t, Validation> validations;
  const std::int64_t size = File::open(path).size();
  std::int64_t unreadable = 0, left_out = 0, at = 0;
  store::each_line(path, [&](std::string_view line, std::int64_t) {
    const std::int64_t begin = std::exchange(at, at + static_cast<std::int64_t>(line.size()) + 1);
    if (begin >= kEventBytes && begin < size - kEventBytes) {
      ++left_out;
      return;
    }
    Json event;
    try {
      event = parse_json(line, path.string());
    } catch (const UsageError&) {  // torn by a crash
    }
    if (!event.is_object()) {
      ++unreadable;
      return;
    }
    const std::string name = text_of(event, "event");
    if (name == "validation") take_validation(event, validations);
    if (name == "start" || name == "resume") take_start(event, validations);
    if (name == "baseline") run.baselines[text_of(event, "name", "baseline")] = numbers_of(event, "bits_per_byte");
    run.events.push_back(std::move(event));
  });
  for (auto& [step, validation] : validations) run.validations.push_back(std::move(validation));
  if (unreadable > 0)
    run.notices.push_back(fmt::format("{} of events.jsonl cut short, and left out.", counted(unreadable, "line")));
  if (left_out > 0)
    run.notices.push_back(fmt::format(
        "events.jsonl has {} bytes: {} events between its first and its last {} MiB are left out, validations among "
        "them.",
        size, left_out, kEventBytes >> 20));
}

// Returns the last line of a file with this event; null if there is none. Lines without its name are not parsed. A line
// that a crash may have torn is at the end.
Json last_event(const fs::path& path, const std::string& event) {
  constexpr std::size_t kCandidates = 16, kLongest = std::size_t{1} << 20;
  std::deque<std::string> last;
  const std::string name = "\"" + event + "\"";
  store::each_line(path, [&](std::string_view line, std::int64_t) {
    if (line.size() > kLongest || line.find(name) == std::string_view::npos) return;
    if (last.size() == kCandidates) last.pop_front();
    last.emplace_back(line);
  });
  for (auto line = last.rbegin(); line != last.rend(); ++line) {
    try {
      Json j = parse_json(*line, path.string());
      if (j.is_object() && text_of(j, "event") == event) return j;
    } catch (const UsageError&) {
    }
  }
  return {};
}

// The spread of the emissions of a joule at a site: that of its PUE and that of its carbon intensity, in quadrature.
std::optional<double> spread_of_site(const Json& site) {
  if (!text_of(site, "intensity_file").empty()) return std::nullopt;
  double squares = 0.0;
  for (const char* key : {"pue", "intensity_g_per_kwh"}) {
    const double spread = site.contains(key) && site[key].is_object() ? number_of(site[key], "spread") : std::nan("");
    if (!(spread >= 0.0 && spread <= 1.0)) return std::nullopt;
    squares += spread * spread;
  }
  return std::sqrt(squares);
}

void read_doubts(const fs::path& path, RunData& run) {
  store::each_line(path, [&](std::string_view line, std::int64_t) {
    constexpr std::size_t kLongest = 1 << 14, kMostAttempts = 64;
    if (line.size() > kLongest || line.find("\"doubtful\"") == std::string_view::npos) return;
    try {
      const Json event = parse_json(line, path.string());
      const double attempt = number_of(event, "attempt");
      if (text_of(event, "event") != "doubtful" || !(attempt >= 1 && attempt < 1e9) || !event.contains("reasons") ||
          !event["reasons"].is_object())
        return;
      std::map<std::string, std::string> reasons;
      for (const auto& [scope, _] : event["reasons"].items()) reasons[scope] = text_of(event["reasons"], scope);
      run.energy_doubts[static_cast<std::int64_t>(attempt)] = std::move(reasons);
      if (run.energy_doubts.size() > kMostAttempts) run.energy_doubts.erase(run.energy_doubts.begin());
    } catch (const UsageError&) {
    }
  });
}

void read_energy(const fs::path& path, RunData& run) {
  read_doubts(path, run);
  run.energy_totals = last_event(path, "totals");
  run.energy_hosts = last_event(path, "by_host");
  run.energy_phases = last_event(path, "phases");
  run.energy_modelled = last_event(path, "modelled");
  run.energy_site = last_event(path, "site");
  bool all_spreads = true;
  double largest = 0.0;
  store::each_line(path, [&](std::string_view line, std::int64_t) {
    constexpr std::size_t kLongest = 1 << 14, kMostSites = 32;
    if (line.size() > kLongest || line.find("\"site\"") == std::string_view::npos) return;
    try {
      const Json event = parse_json(line, path.string());
      const std::string name = text_of(event, "name");
      if (text_of(event, "event") != "site") return;
      const auto spread = spread_of_site(event);
      all_spreads = all_spreads && spread;
      largest = std::max(largest, spread.value_or(0.0));
      if (run.energy_sites.size() < kMostSites && std::ranges::find(run.energy_sites, name) == run.energy_sites.end())
        run.energy_sites.push_back(name);
    } catch (const UsageError&) {
    }
  });
  if (all_spreads && !run.energy_sites.empty()) run.emissions_spread = largest;
}

// Reads a file beside the metrics. If the file is damaged, only its part of the page is missing.
Json read_beside(const fs::path& path, RunData& run) {
  if (!fs::exists(path)) return {};
  try {
    return read_json(path);
  } catch (const UsageError& error) {
    run.notices.push_back(fmt::format("{} could not be read: {}", path.filename().string(), error.what()));
    return {};
  }
}

void note_non_finite(RunData& run) {
  std::int64_t count = 0, first = 0;
  for (const auto& m : run.metrics.steps)
    if (!std::isfinite(m.loss) && ++count == 1) first = m.step;
  if (count > 0)
    run.notices.push_back(
        fmt::format("The loss was not finite at {}, first at step {}.", counted(count, "step"), first));
}

}  // namespace

RunData read_run(const fs::path& path) {
  if (!fs::is_directory(path))
    throw UsageError("{}: no such run directory (`molen runs list` shows those there are)", path.string());
  if (!fs::exists(path / "metrics.jsonl") && !fs::exists(path / "events.jsonl") && !fs::exists(path / "config.toml"))
    throw UsageError("{}: no metrics.jsonl, events.jsonl or config.toml here; is it a run directory?", path.string());
  RunData run;
  run.path = fs::canonical(path);
  run.metrics = store::read_metrics(path / "metrics.jsonl");
  if (run.metrics.torn_lines > 0)
    run.notices.push_back(
        fmt::format("{} of metrics.jsonl cut short, and left out.", counted(run.metrics.torn_lines, "line")));
  note_non_finite(run);
  if (fs::exists(path / "config.toml")) run.config = read_file(path / "config.toml");
  try {
    run.values = config_values(run.config);
  } catch (const UsageError& error) {
    run.notices.push_back(fmt::format("config.toml cannot be read: {}", error.what()));
  }
  run.environment = read_beside(path / "environment.json", run);
  run.predicted = read_beside(path / "predicted.json", run);
  run.id = text_of(read_beside(path / "run.json", run), "id");
  if (fs::exists(path / "events.jsonl")) read_events(path / "events.jsonl", run);
  if (fs::exists(path / "energy.jsonl")) read_energy(path / "energy.jsonl", run);
  return run;
}

namespace {

// Collects values by dotted key; a string without its quotes, any other value as TOML writes it.
void collect_values(const toml::table& table, const std::string& prefix, std::map<std::string, std::string>& values) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table(); inner != nullptr) {
      collect_values(*inner, name + ".", values);
    } else if (const auto* text = node.as_string(); text != nullptr) {
      values[name] = text->get();
    } else {
      std::ostringstream out;
      node.visit([&](const auto& value) { out << value; });
      values[name] = out.str();
    }
  }
}

}  // namespace

std::map<std::string, std::string> config_values(const std::string& toml) {
  std::map<std::string, std::string> values;
  try {
    collect_values(toml::parse(toml), "", values);
  } catch (const toml::parse_error& error) {
    throw UsageError("line {}: {}", error.source().begin.line, error.description());
  }
  return values;
}

std::string text_of(const Json& object, const std::string& key, const std::string& absent) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return absent;
  const Json& member = object[key];
  return member.is_string() ? member.get<std::string>() : member.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double number_of(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key) && object[key].is_number() ? object[key].get<double>()
                                                                               : std::nan("");
}

}  // namespace molen::serve
