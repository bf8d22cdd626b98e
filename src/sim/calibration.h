// A calibration: cost models of one machine, each for a way of running on it (ranks, threads, precision, communicator).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "sim/cost_model.h"

namespace molen::sim {

struct Conditions {
  int ranks = 1;    // on this machine, all busy at once
  int threads = 1;  // per rank
  std::string compute = "fp32";
  std::string kernels = "fused";
  std::string communicator = "self";
  bool operator==(const Conditions&) const = default;
  std::string text() const;
};
Conditions conditions_of(const program::Setting& setting, const std::string& communicator);

struct Calibration {
  std::string host, cpu, created;  // created: UTC
  struct Entry {
    Conditions conditions;
    CostModel costs;
  };
  std::vector<Entry> entries;

  // Throws UsageError that names the conditions that are there.
  const CostModel& costs(const Conditions& conditions, std::string_view origin) const;
  bool has(const Conditions& conditions) const;
  void replace(Entry entry);
};

Calibration parse_calibration(const Json& json, const std::string& origin);  // throws UsageError
Json to_json(const Calibration& calibration);
Calibration read_calibration(const fs::path& path);
void write_calibration(const fs::path& path, const Calibration& calibration);

}  // namespace molen::sim
