#include "cluster/site.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"

namespace molen::cluster {
namespace {

constexpr std::int64_t kLargestSiteFile = 1 << 20;  // bytes
constexpr double kKgPerJouleOfGramPerKwh = 1e-3 / 3.6e6;
constexpr const char* kCountrySource =
    "life cycle, mean of 2023: Ember and Our World in Data (CC BY 4.0), as tabulated by CodeCarbon";

// The mean of another year differs by some ten per cent (Finland: 79 in 2023, 72 in 2025).
constexpr double kSpreadOfCountry = 0.1;

constexpr std::array<Country, 28> kCountries{
    {{"AT", "Austria", 111},      {"AU", "Australia", 549},      {"BE", "Belgium", 138},
     {"BG", "Bulgaria", 335},     {"CA", "Canada", 170},         {"CH", "Switzerland", 35},
     {"CN", "China", 582},        {"CZ", "Czechia", 450},        {"DE", "Germany", 381},
     {"DK", "Denmark", 152},      {"ES", "Spain", 174},          {"FI", "Finland", 79},
     {"FR", "France", 56},        {"GB", "United Kingdom", 238}, {"IE", "Ireland", 291},
     {"IN", "India", 713},        {"IT", "Italy", 331},          {"JP", "Japan", 485},
     {"KR", "South Korea", 431},  {"LU", "Luxembourg", 105},     {"NL", "Netherlands", 268},
     {"NO", "Norway", 30},        {"PL", "Poland", 662},         {"PT", "Portugal", 166},
     {"SA", "Saudi Arabia", 707}, {"SE", "Sweden", 41},          {"SI", "Slovenia", 231},
     {"US", "United States", 369}}};

bool is_code(const std::string& name) {
  return name.size() == 2 && std::ranges::all_of(name, [](unsigned char c) { return std::isalpha(c) != 0; });
}

RunSite site_of_country(std::string code) {
  for (char& c : code) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto found = std::ranges::find(kCountries, code, &Country::code);
  if (found == kCountries.end()) {
    std::string all;
    for (const Country& c : kCountries) all += (all.empty() ? "" : ", ") + std::string(c.code);
    throw UsageError("there is no carbon intensity for the country '{}'; there are those of {} (docs/formats/site.md)",
                     code, all);
  }
  RunSite site;
  site.name = found->name, site.country = code;
  site.pue = {1.0, 0.0, "not stated: the energy is that of the computers alone"};
  site.intensity = {found->grams_per_kwh * kKgPerJouleOfGramPerKwh, kSpreadOfCountry, kCountrySource};
  return site;
}

}  // namespace

std::span<const Country> countries() {
  return kCountries;
}

double RunSite::mean_intensity(double from_s, double to_s) const {
  const double first = series ? std::max(from_s, series->begin_s()) : 1.0;
  const double last = series ? std::min(to_s, series->end_s()) : 0.0;
  if (first > last) return intensity.value;
  if (from_s == to_s) return series->at(to_s);
  if (first == last) return intensity.value;
  const double share = (last - first) / (to_s - from_s);
  return share * series->mean(first, last) + (1.0 - share) * intensity.value;
}

RunSite site_of(const Cluster& cluster) {
  RunSite site;
  site.name = cluster.name;
  site.pue = cluster.site.pue, site.intensity = cluster.site.intensity;
  site.water = cluster.site.water, site.price = cluster.site.price;
  site.market_intensity = cluster.site.market_intensity, site.embodied = cluster.site.embodied;
  return site;
}

RunSite find_site(const std::string& name) {
  if (is_code(name)) return site_of_country(name);
  if (name.ends_with(".toml") || name.find('/') != std::string::npos) {
    RunSite site = parse_site(read_file(name, kLargestSiteFile), name);
    try {
      if (!site.series_file.empty()) site.series = read_intensity(site.series_file);
    } catch (const UsageError& error) {
      throw UsageError("{}: site.intensity_file: {}", name, error.what());
    }
    return site;
  }
  return site_of(find(name));
}

}  // namespace molen::cluster
