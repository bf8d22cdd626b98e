// What the report reads of a run directory.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "store/metrics.h"

namespace molen::serve {

struct Validation {
  std::int64_t step = 0;
  double loss = 0.0;
  std::map<std::string, double> bits_per_byte;
};

struct RunData {
  fs::path path;
  store::MetricsFile metrics;
  std::vector<Json> events;
  std::vector<Validation> validations;
  Json environment = Json::object(), predicted;   // predicted: null where there is none
  std::string config;
};

// Throws UsageError where `path` is no run directory.
RunData read_run(const fs::path& path);

}  // namespace molen::serve
