// The footprint of a run: the energy of all its attempts, and what follows from it at the site that `energy.site` or
// `--cluster` named.
#pragma once

#include <optional>
#include <string>

#include "serve/run_data.h"

namespace molen::serve {

inline constexpr double kJoulesPerKwh = 3.6e6;

struct Footprint {
  double computers_j = 0.0;         // measured, with the steps that failures undid
  double undone_j = 0.0;            // of it, of those steps
  std::string partial;              // what the meters do not cover, in words; empty: nothing is missing
  double seconds = 0.0;             // wall time of all attempts
  std::optional<std::string> site;  // its name; the rest is absent without a site
  std::optional<double> pue, site_j, grams_per_kwh;  // grams: the mean over the run
  std::optional<double> kg_co2e, water_l, eur;
  std::optional<double> car_km;  // that a car drives for the same emissions (plan::car_emissions)
  std::string intensity_source;
};

// Returns nothing when no energy was measured.
std::optional<Footprint> footprint_of(const RunData& run);
// Returns the joules of the run over the scopes of processors, GPUs and memory, each without PUE; nothing for a kind
// that no meter reads. A scope within another one of the same kind is not added to it.
struct JoulesByKind {
  std::optional<double> cpu, gpu, memory;
};
JoulesByKind joules_by_kind(const RunData& run);

}  // namespace molen::serve
