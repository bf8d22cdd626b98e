// The parts of a run directory (docs/formats) that the report reads. Any file may be absent, because a run that died
// before its first step has a report too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "store/metrics.h"

namespace molen::serve {

struct Validation {
  std::int64_t step = 0;
  double loss = 0.0;  // NaN: not finite
  std::map<std::string, double> bits_per_byte;
};

struct RunData {
  fs::path path;
  store::MetricsFile metrics;
  std::vector<Json> events;                                        // objects, in file order
  std::vector<Validation> validations;                             // by step; the last one of each step
  std::map<std::string, std::map<std::string, double>> baselines;  // name -> language -> bits per byte
  Json environment = Json::object(), predicted;                    // predicted: null when there is none
  Json energy_totals;                                              // of the run; null when there are none
  Json energy_site;                       // the site of the last attempt that named one; null when there is none
  std::vector<std::string> energy_sites;  // the names of all sites, in the order of their first attempts
  // The largest spread of the carbon intensity times the PUE of these sites (1 is 100 %); absent where one of them
  // states none, as a series of intensities does.
  std::optional<double> emissions_spread;
  std::string id;      // the run's own (run.json); "" if it is not known
  Json energy_hosts;   // the joules of each host in the last attempt on several; null: there is none
  Json energy_phases;  // the joules of phases in the last attempt; null when there are none
  // By attempt: {scope: why its joules may be wrong}, as the attempt said last; empty: nothing says so.
  std::map<std::int64_t, std::map<std::string, std::string>> energy_doubts;
  Json energy_modelled;                       // joules that a model estimated in the last attempt; null: none
  std::string config;                         // TOML text
  std::map<std::string, std::string> values;  // "table.key" -> value, of `config`
  std::vector<std::string> notices;           // what could not be read and was left out
};

// Reads a run directory. Throws UsageError when `path` is none.
RunData read_run(const fs::path& path);

// Returns "table.key" -> value of a TOML text: strings without their quotes, other values as TOML writes them. Throws
// UsageError that names the line when the text is not TOML.
std::map<std::string, std::string> config_values(const std::string& toml);

// Returns a member as text: a string as it is, another value as JSON, `absent` when the member is missing or null.
std::string text_of(const Json& object, const std::string& key, const std::string& absent = "");
// Returns a member as a number, or NaN when it is no number.
double number_of(const Json& object, const std::string& key);

}  // namespace molen::serve
