// The site at which a run takes place: its emissions, water and prices (`energy.site`, docs/formats/site.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cluster/cluster.h"
#include "cluster/intensity.h"

namespace molen::cluster {

// A country by its code of two letters (ISO 3166-1), with the mean carbon intensity of its grid over a year.
struct Country {
  std::string_view code, name;
  double grams_per_kwh = 0.0;  // CO2e, over the life cycle
};
std::span<const Country> countries();  // by ascending code

struct RunSite {
  std::string name;                        // "lumi-g", "Finland", or the file
  std::string country;                     // its code, if the site names one
  Figure pue;                              // energy of the site over energy of its computers
  Figure intensity;                        // kg CO2e per J of electricity
  std::optional<Figure> water;             // m^3 per J of the computers' energy
  std::optional<Figure> price;             // euros per J of electricity
  std::optional<Figure> market_intensity;  // kg CO2e per J of the electricity that the site has contracts for
  std::optional<Figure> embodied;          // kg CO2e of making the computers, for each s of one device
  std::string series_file;                 // that the site's file names, beside it; "" if none
  std::optional<IntensitySeries> series;   // of that file; replaces `intensity` at the times for which it has values

  // Returns the mean intensity between two times (s since 1970; may be equal).
  double mean_intensity(double from_s, double to_s) const;
};

RunSite site_of(const Cluster& cluster);
// Returns the site of a country's code ("NL" or "nl"; the energy is then that of the computers alone), of a shipped
// description's name, or of a file (a word that ends in ".toml" or has a "/"): a description, or a [site] table alone.
// Throws UsageError with the nearest name, or that of the file, the line and the key.
RunSite find_site(const std::string& name);
// Reads the text of a [site] file, but not the series that it names.
RunSite parse_site(std::string_view text, const std::string& origin);

}  // namespace molen::cluster
