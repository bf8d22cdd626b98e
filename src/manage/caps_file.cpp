#include "manage/caps_file.h"

#include <fnmatch.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "collect/limits.h"
#include "collect/record.h"
#include "config/values.h"
#include "daemon/permission.h"

namespace molen::manage {
namespace {

constexpr std::int64_t kLargestCapsFile = 1 << 20;  // bytes
constexpr std::size_t kMostCaps = 100, kMostPatterns = 10'000;
constexpr double kDayS = 86400;

// Parses an energy. Failures describe the expected text, as those of config/values.h.
Result<Joules> parse_joules(std::string_view text) {
  const Failure wrong{"an energy such as \"120 MWh\" or \"40 MJ\""};
  text = config::trimmed(text);
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end == 0 || end == std::string_view::npos) return wrong;
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, number);
  if (error != std::errc() || stop != text.data() + end) return wrong;
  const std::string_view unit = config::trimmed(text.substr(end));
  for (const auto& [name, joules] :
       {std::pair("J", 1.0), std::pair("kJ", 1e3), std::pair("MJ", 1e6), std::pair("GJ", 1e9), std::pair("Wh", 3600.0),
        std::pair("kWh", 3.6e6), std::pair("MWh", 3.6e9), std::pair("GWh", 3.6e12)})
    if (unit == name) return Joules(number * joules);
  return wrong;
}

std::string shown(Joules joules) {
  return fmt::format("{:g} J", joules.value);
}
template <class T>
std::string shown(T value) {
  return config::print(value);
}

// A table of the file, whose keys are checked as they are read.
class CapTable {
 public:
  CapTable(const toml::table& table, std::string origin, std::string prefix)
      : table_(table), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  void require_known(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : table_)
      if (std::find(known.begin(), known.end(), key.str()) == known.end())
        throw UsageError("{}:{}: unknown key '{}{}'{}", origin_, value.source().begin.line, prefix_, key.str(),
                         did_you_mean(std::string(key.str()), known));
  }
  bool has(const char* key) const { return table_.contains(key); }
  // Returns "FILE:LINE: KEY", for messages.
  std::string where(const char* key) const {
    const toml::node* node = table_.get(key);
    const auto line = node != nullptr ? node->source().begin.line : table_.source().begin.line;
    return fmt::format("{}:{}: {}{}", origin_, line, prefix_, key);
  }
  const toml::node& at(const char* key) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) throw UsageError("{} is missing", where(key));
    return *node;
  }
  std::string text(const char* key) const {
    const auto* value = at(key).as_string();
    if (value == nullptr) throw UsageError("{}: must be a text in quotes", where(key));
    return value->get();
  }
  // Reads a quantity by its parser of config/values.h, between two bounds.
  template <class T>
  T quantity(const char* key, Result<T> (*parse)(std::string_view), T least, T most) const {
    const std::string words = text(key);
    const auto value = parse(words);
    if (!value) throw UsageError("{}: '{}' must be {}", where(key), words, value.reason());
    if (value.value() < least || most < value.value())
      throw UsageError("{}: '{}' must be {} to {}", where(key), words, shown(least), shown(most));
    return value.value();
  }
  const toml::array& list(const char* key) const {
    const auto* list = at(key).as_array();
    if (list == nullptr) throw UsageError("{}: must be a list", where(key));
    return *list;
  }

 private:
  const toml::table& table_;
  const std::string origin_, prefix_;
};

void read_nodes(const CapTable& table, CapOfNodes& cap) {
  for (const toml::node& node : table.list("nodes")) {
    const auto* text = node.as_string();
    if (text == nullptr || !collect::is_name(text->get()))
      throw UsageError("{}: must be names of nodes, or patterns such as \"gpu[0-9]*\"", table.where("nodes"));
    cap.nodes.push_back(text->get());
  }
  if (cap.nodes.empty() || cap.nodes.size() > kMostPatterns)
    throw UsageError("{}: must have 1 to {} names or patterns; [\"*\"] is all nodes", table.where("nodes"),
                     kMostPatterns);
}

void read_common(const CapTable& table, CapOfNodes& cap) {
  cap.name = table.text("name");
  if (!collect::is_name(cap.name) || cap.name.size() + 4 > collect::kMostNameBytes)
    throw UsageError("{}: '{}' must be 1 to {} printable ASCII characters without spaces", table.where("name"),
                     cap.name, collect::kMostNameBytes - 4);
  read_nodes(table, cap);
  cap.node_most = table.quantity("node_most", config::parse_watts, Watts(1), Watts(collect::kMostWatts));
  if (table.has("script_limit") && !table.has("script"))
    throw UsageError("{}: there is no script", table.where("script_limit"));
  if (!table.has("script")) return;
  Script script{table.text("script")};
  if (!script.program.is_absolute())
    throw UsageError("{}: '{}' must be an absolute path", table.where("script"), script.program.string());
  if (table.has("script_limit"))
    script.limit = table.quantity("script_limit", config::parse_seconds, Seconds(0.1), Seconds(600));
  cap.script = std::move(script);
}

PowerCap power_cap_of(const CapTable& table) {
  table.require_known({"name", "nodes", "node_most", "script", "script_limit", "power", "kind", "lift_at"});
  PowerCap cap;
  read_common(table, cap);
  cap.power = table.quantity("power", config::parse_watts, Watts(1), Watts(1e12));
  const std::string kind = table.text("kind");
  if (kind != "soft" && kind != "hard")
    throw UsageError("{}: '{}' must be \"soft\" or \"hard\"", table.where("kind"), kind);
  cap.kind = kind == "soft" ? PowerCap::Kind::kSoft : PowerCap::Kind::kHard;
  if (!table.has("lift_at")) return cap;
  if (cap.kind == PowerCap::Kind::kHard) throw UsageError("{}: a hard cap is never lifted", table.where("lift_at"));
  const auto value = table.at("lift_at").value<double>();
  if (!value || !(*value > 0 && *value < 1))
    throw UsageError("{}: must be a part of the cap, above 0 and below 1", table.where("lift_at"));
  cap.lift_at = *value;
  return cap;
}

void read_levels(const CapTable& table, EnergyCap& cap) {
  cap.warn_at.clear();
  for (const toml::node& node : table.list("warn_at")) {
    const auto level = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    const bool ascends = level && (cap.warn_at.empty() || *level > cap.warn_at.back());
    if (!ascends || *level < 1 || *level > 1000)
      throw UsageError("{}: must be percent of the energy, whole numbers from 1 to 1000 that ascend",
                       table.where("warn_at"));
    cap.warn_at.push_back(static_cast<int>(*level));
  }
  if (cap.warn_at.empty()) throw UsageError("{}: has no level", table.where("warn_at"));
}

EnergyCap energy_cap_of(const CapTable& table) {
  table.require_known({"name", "nodes", "node_most", "script", "script_limit", "energy", "period", "warn_at"});
  EnergyCap cap;
  read_common(table, cap);
  cap.energy = table.quantity("energy", parse_joules, Joules(1), Joules(9e15));
  const std::string period = table.text("period");
  if (period == "day") {
    cap.every = EnergyCap::Every::kDay;
  } else if (period == "week") {
    cap.every = EnergyCap::Every::kWeek;
  } else if (period != "month") {
    const auto seconds = config::parse_seconds(period);
    if (!seconds || seconds.value() < Seconds(1) || seconds.value() > Seconds(3660 * kDayS))
      throw UsageError("{}: '{}' must be \"day\", \"week\", \"month\", or a time such as \"72 h\"",
                       table.where("period"), period);
    cap.every = EnergyCap::Every::kSeconds;
    cap.every_s = seconds.value().value;
  }
  if (table.has("warn_at")) read_levels(table, cap);
  return cap;
}

// Calls f(table) for each table of [[key]].
template <class F>
void each_cap(const toml::table& document, const std::string& origin, const char* key, F f) {
  if (!document.contains(key)) return;
  const toml::array* list = document.get(key)->as_array();
  if (list == nullptr || !list->is_homogeneous<toml::table>() || list->size() > kMostCaps)
    throw UsageError("{}: '{}' must be tables [[{}]], at most {}", origin, key, key, kMostCaps);
  for (const toml::node& node : *list) f(CapTable(*node.as_table(), origin, std::string(key) + "."));
}

void read_manage(const CapTable& table, Caps& caps) {
  table.require_known({"period", "hold", "stale_after", "forget_after"});
  const auto read = [&](const char* key, Seconds least, Seconds most, Seconds& into) {
    if (table.has(key)) into = table.quantity(key, config::parse_seconds, least, most);
  };
  read("period", Seconds(0.1), Seconds(1800), caps.period);
  read("hold", Seconds(1), Seconds(collect::kLongestLimitS), caps.hold);
  read("stale_after", Seconds(0.1), Seconds(kDayS), caps.stale_after);
  read("forget_after", Seconds(1), Seconds(3660 * kDayS), caps.forget_after);
  if (caps.hold < 2.0 * caps.period)
    throw UsageError("{}: {} is less than twice the period, so limits would end before they are renewed",
                     table.where("hold"), config::print(caps.hold));
  if (caps.forget_after < caps.stale_after)
    throw UsageError("{}: a node would be forgotten before its reading is old (stale_after)",
                     table.where("forget_after"));
}

void require_script(const CapOfNodes& cap) {
  if (!cap.script) return;
  struct stat status {};
  const std::string path = cap.script->program.string();
  const std::string where = fmt::format("script of {}: {}", cap.name, path);
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) throw UsageError("{}: no such file", where);
  if (::access(path.c_str(), X_OK) != 0) throw UsageError("{}: may not be run: chmod +x", where);
  if (const std::string why = daemon::not_ours(status, cap.script->program); !why.empty())
    throw UsageError("script of {}: {}", cap.name, why);
}

}  // namespace

const char* name_of(PowerCap::Kind kind) {
  return kind == PowerCap::Kind::kSoft ? "soft" : "hard";
}

bool CapOfNodes::has(const std::string& node) const {
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& pattern) {
    return pattern == node || ::fnmatch(pattern.c_str(), node.c_str(), 0) == 0;
  });
}

std::vector<std::string> CapOfNodes::named() const {
  std::vector<std::string> names;
  for (const std::string& pattern : nodes)
    if (pattern.find_first_of("*?[\\") == std::string::npos) names.push_back(pattern);
  return names;
}

std::pair<double, double> period_of(const EnergyCap& cap, double time_s) {
  using std::chrono::days, std::chrono::sys_days;
  if (cap.every == EnergyCap::Every::kSeconds) {
    const double begin = std::floor(time_s / cap.every_s) * cap.every_s;
    return {begin, begin + cap.every_s};
  }
  const sys_days day{days(static_cast<int>(std::floor(time_s / kDayS)))};
  const auto seconds = [](sys_days d) { return static_cast<double>(d.time_since_epoch().count()) * kDayS; };
  if (cap.every == EnergyCap::Every::kDay) return {seconds(day), seconds(day + days(1))};
  if (cap.every == EnergyCap::Every::kWeek) {
    const sys_days monday = day - (std::chrono::weekday(day) - std::chrono::Monday);
    return {seconds(monday), seconds(monday + days(7))};
  }
  const std::chrono::year_month_day date(day);
  const auto first = date.year() / date.month() / std::chrono::day(1);
  return {seconds(sys_days(first)), seconds(sys_days(first + std::chrono::months(1)))};
}

Caps parse_caps(std::string_view text, const std::string& origin) {
  toml::table document;
  try {
    document = toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: {}", origin, error.source().begin.line, error.description());
  }
  CapTable(document, origin, "").require_known({"manage", "power_cap", "energy_cap"});
  Caps caps;
  if (document.contains("manage")) {
    const toml::table* manage = document.get("manage")->as_table();
    if (manage == nullptr) throw UsageError("{}: 'manage' must be a table", origin);
    read_manage(CapTable(*manage, origin, "manage."), caps);
  }
  each_cap(document, origin, "power_cap", [&](const CapTable& t) { caps.power.push_back(power_cap_of(t)); });
  each_cap(document, origin, "energy_cap", [&](const CapTable& t) { caps.energy.push_back(energy_cap_of(t)); });
  if (caps.power.empty() && caps.energy.empty())
    throw UsageError("{}: has neither [[power_cap]] nor [[energy_cap]]", origin);
  std::set<std::string> names;
  for (const PowerCap& cap : caps.power)
    if (!names.insert(cap.name).second) throw UsageError("{}: two caps have the name '{}'", origin, cap.name);
  for (const EnergyCap& cap : caps.energy)
    if (!names.insert(cap.name).second) throw UsageError("{}: two caps have the name '{}'", origin, cap.name);
  return caps;
}

Caps read_caps(const fs::path& file) {
  Caps caps = parse_caps(read_file(file, kLargestCapsFile), file.string());
  for (const PowerCap& cap : caps.power) require_script(cap);
  for (const EnergyCap& cap : caps.energy) require_script(cap);
  return caps;
}

}  // namespace molen::manage
