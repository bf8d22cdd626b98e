// What the report reads of a run directory (DESIGN section 5). Every file may be absent: a run that died before its
// first step has a report too.
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
  std::vector<Validation> validations;                             // by step, the last one of each
  std::map<std::string, std::map<std::string, double>> baselines;  // name -> language -> bits per byte
  Json environment = Json::object(), predicted;                    // predicted: null where there is none
  Json energy_totals;                                              // of the run; null where there are none
  std::string config;                                              // TOML text
  std::map<std::string, std::string> values;                       // "table.key" -> value, of `config`
  std::vector<std::string> notices;                                // what could not be read and was left out
};

// Throws UsageError where `path` is no run directory.
RunData read_run(const fs::path& path);

// "table.key" -> value as written, without quotes and comments, of one-line values of a resolved configuration. For
// display only: what it does not understand it leaves out.
std::map<std::string, std::string> config_values(const std::string& toml);

// A member as text: strings as they are, others as JSON, `absent` where there is none or it is null.
std::string text_of(const Json& object, const std::string& key, const std::string& absent = "");
// A member as a number; NaN where it is none.
double number_of(const Json& object, const std::string& key);

}  // namespace molen::serve
