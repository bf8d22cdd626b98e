#include "energy/totals.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "energy/json_members.h"

namespace molen::energy {

std::optional<double> RunTotals::j_per_token() const {
  if (!total_j || tokens <= 0) return std::nullopt;
  return *total_j / static_cast<double>(tokens);
}

std::optional<double> RunTotals::total_resolution_j() const {
  std::optional<double> sum;
  for (const std::string& scope : summed) {
    const auto known = resolution_j.find(scope);
    if (known == resolution_j.end() || !known->second) return std::nullopt;
    sum = sum.value_or(0.0) + *known->second;
  }
  return sum;
}

double RunTotals::undone_j() const {
  const double undone = spent_total_j - total_j.value_or(0.0);
  return undone > 1e-9 * spent_total_j ? undone : 0.0;  // less is rounding of the two sums
}

void RunTotals::take_over(const std::map<std::string, double>& spent, double total, double after_s,
                          bool ended_by_itself) {
  for (const auto& [scope, all] : spent) {
    double& known = spent_j[scope];
    if (const double more = all - known; ended_by_itself && more > 0.0) {
      joules[scope] += more;
      if (const auto phases = phases_j.find(scope); phases != phases_j.end()) phases->second["unattributed"] += more;
    }
    known = std::max(known, all);
  }
  if (ended_by_itself && total > spent_total_j) total_j = total_j.value_or(0.0) + (total - spent_total_j);
  if (ended_by_itself && after_s > spent_s) seconds += after_s - spent_s;
  spent_total_j = std::max(spent_total_j, total);
  spent_s = std::max(spent_s, after_s);
}

std::string RunTotals::text() const {
  std::string text = first_step > 1 ? fmt::format("since step {}: ", first_step) : "";
  text += fmt::format("{}, {} tokens, {}, ", counted(steps, "step"), tokens, human(Seconds(seconds)));
  const double undone = undone_j();
  const std::string beside = undone > 0.0 ? fmt::format("; failures undid steps of {:.6g} J more", undone) : "";
  if (!total_j) return text + "energy not measured" + beside;
  text += fmt::format("{:.6g} J", *total_j);
  if (const auto resolution = total_resolution_j()) text += fmt::format(" +- {:.3g} J of resolution", *resolution);
  if (const std::string left_out = partial(); !left_out.empty()) text += fmt::format(" (partial: {})", left_out);
  if (const auto per_token = j_per_token()) text += fmt::format(", {:.4g} J/token", *per_token);
  return text + beside;
}

AtSite sum(const AtSite& before, bool joules_before, const AtSite& more) {
  const auto both = [&](const std::optional<double>& a, const std::optional<double>& b) {
    return b && (a || !joules_before) ? std::optional(a.value_or(0.0) + *b) : std::nullopt;
  };
  return {both(before.site_j, more.site_j),
          both(before.kg_co2e, more.kg_co2e),
          both(before.water_l, more.water_l),
          both(before.eur, more.eur),
          both(before.market_kg_co2e, more.market_kg_co2e),
          both(before.embodied_kg_co2e, more.embodied_kg_co2e)};
}

RunTotals add(RunTotals t, std::int64_t steps, std::int64_t tokens, const EnergySoFar& energy,
              const Coverage& coverage) {
  t.steps += steps;
  t.tokens += tokens;
  t.seconds += energy.seconds;
  t.spent_s += energy.seconds;
  for (const auto& [scope, joules] : energy.joules) {
    const auto more = energy.resolution_j.find(scope);
    const bool known = more != energy.resolution_j.end() && more->second;
    std::optional<double>& resolution = t.resolution_j[scope];
    if (!t.joules.contains(scope)) resolution = 0.0;
    resolution = known && resolution ? std::optional(*resolution + *more->second) : std::nullopt;
    t.joules[scope] += joules;
    t.spent_j[scope] += joules;
    if (coverage.summed.contains(scope)) t.summed.insert(scope);
  }
  for (const auto& [scope, account] : energy.phases.items())
    for (const auto& [name, entry] : account.at("entries").items())
      t.phases_j[scope][name] += entry.at("joules").get<double>();
  if (energy.total_j) {
    const std::optional<double>& kg = energy.at_site.kg_co2e;
    const bool known = kg && (!t.total_j || t.kg_co2e);
    t.kg_co2e = known ? std::optional(t.kg_co2e.value_or(0.0) + *kg) : std::nullopt;
    t.spent_at_site = sum(t.spent_at_site, t.spent_total_j > 0.0, energy.at_site);
    t.total_j = t.total_j.value_or(0.0) + *energy.total_j;
    t.spent_total_j += *energy.total_j;
  }
  t.hosts = std::max(t.hosts, coverage.hosts);
  const auto miss = [&](const std::string& what, std::int64_t n) { t.missing[what] = std::max(t.missing[what], n); };
  for (const auto& [what, n] : coverage.missing) miss(what, n);
  for (const auto& [scope, n] : energy.lost)
    if (coverage.summed.contains(scope)) miss(scope + " (readings lost)", n);
  return t;
}

Json to_json(const RunTotals& t) {
  Json joules = Json::object(), missing = Json::object(), spent = Json::object();
  for (const auto& [scope, j] : t.spent_j) spent[scope] = j;
  for (const auto& [scope, j] : t.joules) joules[scope] = j;
  Json resolution = Json::object();
  for (const auto& [scope, j] : t.resolution_j) resolution[scope] = j ? Json(*j) : Json();
  for (const auto& [what, n] : t.missing) missing[what] = n;
  const auto per_token = t.j_per_token();
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return {{"first_step", t.first_step},
          {"steps", t.steps},
          {"tokens", t.tokens},
          {"seconds", t.seconds},
          {"energy_j", joules},
          {"resolution_j", resolution},
          {"phases_j", t.phases_j},
          {"spent_j", spent},
          {"spent_total_j", t.spent_total_j},
          {"spent_s", t.spent_s},
          {"spent_site_j", or_null(t.spent_at_site.site_j)},
          {"spent_kg_co2e", or_null(t.spent_at_site.kg_co2e)},
          {"spent_water_l", or_null(t.spent_at_site.water_l)},
          {"spent_eur", or_null(t.spent_at_site.eur)},
          {"spent_market_kg_co2e", or_null(t.spent_at_site.market_kg_co2e)},
          {"spent_embodied_kg_co2e", or_null(t.spent_at_site.embodied_kg_co2e)},
          {"undone_j", t.undone_j()},
          {"total_j", t.total_j ? Json(*t.total_j) : Json()},
          {"total_resolution_j", or_null(t.total_resolution_j())},
          {"kg_co2e", t.kg_co2e ? Json(*t.kg_co2e) : Json()},
          {"j_per_token", per_token ? Json(*per_token) : Json()},
          {"hosts", t.hosts},
          {"summed", t.summed},
          {"missing", missing},
          {"partial", t.partial()}};
}

RunTotals totals_from_json(const Json& json, std::int64_t step_done, const std::string& origin) {
  if (!json.is_object()) throw UsageError("{}: totals is no object", origin);
  RunTotals t;
  if (!json.contains("steps")) {
    t.first_step = step_done + 1;
    return t;
  }
  const std::string where = origin + ": totals";
  t.first_step = count_member(json, "first_step", where);
  t.steps = count_member(json, "steps", where);
  t.tokens = count_member(json, "tokens", where);
  t.seconds = amount_member(json, "seconds", where);
  t.joules = amounts_member(json, "energy_j", where);
  // Older checkpoints have no resolutions, so those of their joules stay unknown.
  for (const auto& [scope, joules] : t.joules) t.resolution_j[scope];
  if (json.contains("resolution_j")) {
    if (!json["resolution_j"].is_object()) throw UsageError("{}: resolution_j is no object", where);
    for (const auto& [scope, j] : json["resolution_j"].items())
      if (!j.is_null()) t.resolution_j[scope] = amount_value(j, "resolution_j." + scope, where);
  }
  if (json.contains("phases_j")) {  // older checkpoints have none
    if (!json["phases_j"].is_object()) throw UsageError("{}: phases_j is no object", where);
    for (const auto& [scope, entries] : json["phases_j"].items())
      t.phases_j[scope] = amounts_member(json["phases_j"], scope.c_str(), where + ": phases_j");
  }
  if (!json_member(json, "total_j", where).is_null()) t.total_j = amount_member(json, "total_j", where);
  const bool has_spent = json.contains("spent_j");  // older checkpoints have none
  t.spent_j = has_spent ? amounts_member(json, "spent_j", where) : t.joules;
  t.spent_total_j = has_spent ? amount_member(json, "spent_total_j", where) : t.total_j.value_or(0.0);
  t.spent_s = has_spent ? amount_member(json, "spent_s", where) : t.seconds;
  if (json.contains("kg_co2e") && !json["kg_co2e"].is_null()) t.kg_co2e = amount_member(json, "kg_co2e", where);
  const auto if_any = [&](const char* key) {
    return json.contains(key) && !json[key].is_null() ? std::optional(amount_member(json, key, where)) : std::nullopt;
  };
  t.spent_at_site = {if_any("spent_site_j"), if_any("spent_kg_co2e"),        if_any("spent_water_l"),
                     if_any("spent_eur"),    if_any("spent_market_kg_co2e"), if_any("spent_embodied_kg_co2e")};
  // An older checkpoint knows only the emissions of what led to it.
  if (!json.contains("spent_kg_co2e") && t.undone_j() == 0.0) t.spent_at_site.kg_co2e = t.kg_co2e;
  t.hosts = count_member(json, "hosts", where);
  t.missing = counts_member(json, "missing", where);
  const Json& summed = json_member(json, "summed", where);
  if (!summed.is_array()) throw UsageError("{}: summed is no list of scopes", where);
  for (const Json& scope : summed) {
    if (!scope.is_string()) throw UsageError("{}: summed holds something that is no name", where);
    t.summed.insert(scope.get<std::string>());
  }
  if (t.first_step + t.steps != step_done + 1)
    throw UsageError("{}: {} steps from step {} on do not end at step {}", where, t.steps, t.first_step, step_done);
  return t;
}

}  // namespace molen::energy
