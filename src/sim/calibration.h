// A calibration: the cost models of one machine, one for each way to run on it (ranks, threads, precision,
// communicator).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "sim/costs.h"

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
// Returns the kernels with which `molen calibrate` measures a type.
arch::Kernels calibrated_kernels(DType compute);

// The cores on which the ranks of a measurement together could run.
struct Cores {
  int logical = 1, physical = 1;
  std::string affinity = "0";  // as Linux writes it: "0-3,8"
  bool operator==(const Cores&) const = default;
};

struct Calibration {
  std::string host, cpu, created;  // created: UTC
  std::string gemm;                // what computed fp32 GEMMs (math/gemm.h)
  struct Entry {
    Conditions conditions;
    Cores cores;
    CostModel costs;
  };
  std::vector<Entry> entries;

  // Returns the costs measured under these conditions. When only other numbers of ranks were measured, extrapolates
  // from them (MeasuredCosts::extrapolated says how). A failure names the call that measures them, and the conditions
  // that were measured.
  Result<MeasuredCosts> find(const Conditions& conditions) const;
  // Does the same; throws UsageError on failure.
  MeasuredCosts costs(const Conditions& conditions, std::string_view origin) const;
  bool has(const Conditions& conditions) const;  // whether they were measured
  void replace(Entry entry);
};

Calibration parse_calibration(const Json& json, const std::string& origin);  // throws UsageError
Json to_json(const Calibration& calibration);
Json to_json(const Calibration::Entry& entry);
Calibration read_calibration(const fs::path& path);
// Whether --cluster names a calibration, which is JSON in a file of any name. The description of a cluster has a name,
// or is a file *.toml.
bool is_calibration(const std::string& cluster);
void write_calibration(const fs::path& path, const Calibration& calibration);

}  // namespace molen::sim
