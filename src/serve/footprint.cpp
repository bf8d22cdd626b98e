#include "serve/footprint.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <vector>

#include "plan/calculus.h"

namespace molen::serve {
namespace {

std::optional<double> known(const Json& object, const char* key) {
  const double value = number_of(object, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string source_of(const Json& site) {
  std::string source = site.is_object() && site.contains("intensity_g_per_kwh")
                           ? text_of(site["intensity_g_per_kwh"], "source")
                           : std::string();
  if (const std::string file = text_of(site, "intensity_file"); !file.empty())
    source = file + ", and where it has no value: " + source;
  return source;
}

}  // namespace

std::optional<Footprint> footprint_of(const RunData& run) {
  const Json& t = run.energy_totals;
  const auto used = known(t, "total_j");
  if (!used) return std::nullopt;
  Footprint f;
  f.undone_j = known(t, "undone_j").value_or(0.0);
  f.computers_j = *used + f.undone_j;
  f.partial = text_of(t, "partial");
  f.seconds = known(t, "spent_s").value_or(known(t, "seconds").value_or(0.0));
  for (const std::string& name : run.energy_sites) f.sites += (f.sites.empty() ? "" : ", ") + name;
  f.country = text_of(run.energy_site, "country");
  f.intensity_source = source_of(run.energy_site);
  f.site_j = known(t, "spent_site_j"), f.kg_co2e = known(t, "spent_kg_co2e");
  f.water_l = known(t, "spent_water_l"), f.eur = known(t, "spent_eur");
  f.market_kg_co2e = known(t, "spent_market_kg_co2e"), f.embodied_kg_co2e = known(t, "spent_embodied_kg_co2e");
  if (f.kg_co2e) f.kg_co2e_spread = run.emissions_spread;
  if (f.site_j && f.computers_j > 0.0) f.pue = *f.site_j / f.computers_j;
  if (f.kg_co2e && f.site_j && *f.site_j > 0.0) f.grams_per_kwh = 1e3 * *f.kg_co2e / (*f.site_j / kJoulesPerKwh);
  if (f.kg_co2e) f.car_km = *f.kg_co2e / plan::car_emissions().value * 1e-3;
  return f;
}

std::string spread_text(const Footprint& f) {
  return f.kg_co2e_spread ? fmt::format(", within {:.2g} % with a probability of 80 %", 1e2 * *f.kg_co2e_spread) : "";
}

std::optional<double> joules_of_kind(const std::map<std::string, double>& by_scope, const std::string& kind) {
  std::optional<double> sum;
  for (const auto& [scope, joules] : by_scope)
    if (scope.size() > kind.size() && scope.starts_with(kind) && std::isdigit(scope[kind.size()]) != 0)
      sum = sum.value_or(0.0) + joules;
  const auto whole = by_scope.find(kind);
  return sum || whole == by_scope.end() ? sum : std::optional(whole->second);
}

JoulesByKind joules_by_kind(const RunData& run) {
  const Json& t = run.energy_totals;
  const char* key = t.is_object() && t.contains("spent_j") ? "spent_j" : "energy_j";
  std::map<std::string, double> by_scope;
  if (t.is_object() && t.contains(key) && t[key].is_object())
    for (const auto& [scope, joules] : t[key].items())
      if (joules.is_number()) by_scope[scope] = joules.get<double>();
  const auto first_of = [&](const std::vector<std::string>& kinds) -> std::optional<double> {
    for (const std::string& kind : kinds)
      if (const auto joules = joules_of_kind(by_scope, kind)) return joules;
    return std::nullopt;
  };
  return {first_of({"cpu-package", "cpu", "grace"}), first_of({"gpu", "accel"}), first_of({"dram"})};
}

}  // namespace molen::serve
