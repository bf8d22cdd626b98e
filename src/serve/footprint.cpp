#include "serve/footprint.h"

#include <cmath>
#include <vector>

#include "plan/calculus.h"

namespace molen::serve {
namespace {

std::optional<double> known(const Json& object, const char* key) {
  const double value = number_of(object, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Returns the value of a figure of the site, in the unit of its key.
std::optional<double> figure_of(const Json& site, const char* key) {
  return site.is_object() && site.contains(key) ? known(site[key], "value") : std::nullopt;
}

// What follows from the site's figures, where they are known.
void add_site(Footprint& f, const RunData& run) {
  const Json& site = run.energy_site;
  if (!site.is_object()) return;
  f.site = text_of(site, "name");
  f.pue = figure_of(site, "pue");
  const auto constant = figure_of(site, "intensity_g_per_kwh");
  if (site.contains("intensity_g_per_kwh")) f.intensity_source = text_of(site["intensity_g_per_kwh"], "source");
  if (const std::string file = text_of(site, "intensity_file"); !file.empty()) f.intensity_source = file;
  if (!f.pue) return;
  f.site_j = f.computers_j * *f.pue;
  if (const auto kg = known(run.energy_totals, "kg_co2e"); kg && constant) {
    f.kg_co2e = *kg + f.undone_j / kJoulesPerKwh * *f.pue * *constant * 1e-3;
    if (*f.site_j > 0.0) f.grams_per_kwh = 1e3 * *f.kg_co2e / (*f.site_j / kJoulesPerKwh);
    f.car_km = *f.kg_co2e / plan::car_emissions().value * 1e-3;
  }
  if (const auto water = figure_of(site, "water_l_per_kwh")) f.water_l = *water * f.computers_j / kJoulesPerKwh;
  if (const auto price = figure_of(site, "price_eur_per_kwh")) f.eur = *price * *f.site_j / kJoulesPerKwh;
}

// Returns the joules of the scopes with one of these beginnings; of the first beginning that any scope has.
std::optional<double> sum_of(const Json& by_scope, const std::vector<std::string>& beginnings) {
  for (const std::string& beginning : beginnings) {
    std::optional<double> sum;
    for (const auto& [scope, joules] : by_scope.items())
      if (scope.starts_with(beginning) && joules.is_number()) sum = sum.value_or(0.0) + joules.get<double>();
    if (sum) return sum;
  }
  return std::nullopt;
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
  add_site(f, run);
  return f;
}

JoulesByKind joules_by_kind(const RunData& run) {
  const Json& t = run.energy_totals;
  const char* key = t.is_object() && t.contains("spent_j") ? "spent_j" : "energy_j";
  if (!t.is_object() || !t.contains(key) || !t[key].is_object()) return {};
  return {sum_of(t[key], {"cpu-package", "cpu", "grace"}), sum_of(t[key], {"gpu", "accel"}), sum_of(t[key], {"dram"})};
}

}  // namespace molen::serve
