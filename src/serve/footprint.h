// The footprint of a run: the energy of all its attempts, and what it came to at the sites that `energy.site` or
// `--cluster` named.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "serve/run_data.h"

namespace molen::serve {

inline constexpr double kJoulesPerKwh = 3.6e6;

struct Footprint {
  double computers_j = 0.0;  // measured, with the steps that failures undid
  double undone_j = 0.0;     // the part of it that went into those steps
  std::string partial;       // what the meters do not cover, in words; empty: nothing is missing
  double seconds = 0.0;      // wall time of all attempts
  std::string sites;         // the names of the sites of its attempts; empty: no attempt named one
  std::string country;       // the code of the last site's country, if that names one
  // The energy at its sites, its emissions, water and price. A value is absent unless each attempt that measured energy
  // knew its site's figure.
  std::optional<double> site_j, kg_co2e, water_l, eur;
  // Emissions by the site's contracts for electricity (`kg_co2e` is by its location), and those of making the
  // computers; each is absent as above.
  std::optional<double> market_kg_co2e, embodied_kg_co2e;
  // With a probability of 80 %, `kg_co2e` is within this share of itself, as far as its PUE and carbon intensity decide
  // it; the meters' own errors are not in it. The largest of all sites. Absent unless each site says its spreads.
  std::optional<double> kg_co2e_spread;
  std::optional<double> pue, grams_per_kwh;  // the means over the run
  std::optional<double> car_km;              // that a car drives for the same emissions (plan::car_emissions)
  std::string intensity_source;              // of the last site
};

// Returns nothing when no energy was measured.
std::optional<Footprint> footprint_of(const RunData& run);
// Returns ", within 10 % with a probability of 80 %" for the emissions, or "" where their spread is not known.
std::string spread_text(const Footprint& footprint);
// Returns the joules of the scopes of a kind: "dram" is the sum over dram0, dram1 and so on, or else the scope dram.
// Nothing if no meter reads it.
std::optional<double> joules_of_kind(const std::map<std::string, double>& by_scope, const std::string& kind);
// Returns the joules of the run over the scopes of processors, GPUs and memory, without PUE.
struct JoulesByKind {
  std::optional<double> cpu, gpu, memory;
};
JoulesByKind joules_by_kind(const RunData& run);

}  // namespace molen::serve
