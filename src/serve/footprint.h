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
  std::optional<double> pue, grams_per_kwh;  // the means over the run
  std::optional<double> car_km;              // that a car drives for the same emissions (plan::car_emissions)
  std::string intensity_source;              // of the last site
};

// Returns nothing when no energy was measured.
std::optional<Footprint> footprint_of(const RunData& run);
// Returns the joules of the scopes of a kind: "dram" is the sum over dram0, dram1 and so on, or else the scope dram.
// Nothing if no meter reads it.
std::optional<double> joules_of_kind(const std::map<std::string, double>& by_scope, const std::string& kind);
// Returns the joules of the run over the scopes of processors, GPUs and memory, without PUE.
struct JoulesByKind {
  std::optional<double> cpu, gpu, memory;
};
JoulesByKind joules_by_kind(const RunData& run);

}  // namespace molen::serve
