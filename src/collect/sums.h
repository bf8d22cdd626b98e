// The energy in a collector's database, added up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/outliers.h"
#include "collect/record.h"

namespace molen::collect {

// The kinds of sums: by "node", "job", "step" (of a job, such as "7.0"), "user" or "day" (UTC).
const std::vector<std::string>& sum_keys();

struct SumQuery {
  std::string by = "node";
  // Only periods that began at `since_s` or later and before `until_s`, in seconds since 1970.
  double since_s = 0, until_s = 2 * kLatestTimeS;
  std::string job = {};  // only periods of this job; empty: all periods
};

// Joules of the parts of nodes, whether a sum counts them or not. Nothing where no meter has read the part.
struct PartJoules {
  std::optional<double> node, cpu, dram, gpu;
  bool operator==(const PartJoules&) const = default;
};

struct EnergySum {
  std::string key;               // empty where the periods have none (no job, no user)
  std::optional<double> joules;  // of the scopes that count; null when nothing was measured
  std::int64_t nodes = 0;
  std::int64_t without_reading = 0;  // periods, of all scopes
  double from_s = 0, until_s = 0;    // of the first period and of the last, since 1970
  // The time in which at least one node had a reading of a scope that counts, and the sum of these times over nodes.
  // Moments that several periods have are in each of them once.
  double seconds = 0, node_seconds = 0;
  // The energy-delay product, J s: over the steps of jobs, the sum of the joules of a step times its seconds, both
  // within this sum. A job without steps is one step. Null without a reading of a job: what has no job has no delay.
  std::optional<double> edp = {};
  PartJoules parts = {};
  std::string node = {}, job = {}, step = {}, user = {};  // where all periods have the same; else empty
  bool operator==(const EnergySum&) const = default;

  // The mean power of all nodes together, W: joules over seconds.
  std::optional<double> watts() const;
};

// Returns the sums of a database that `molen energy collect` wrote ("sqlite:FILE", "postgresql://..."), in the order of
// their keys. Changes nothing. Throws as open_database does, and UsageError if the database has no such tables.
std::vector<EnergySum> energy_sums(const std::string& words, const SumQuery& query);

Json to_json(const EnergySum& sum);

// Returns a line for each sum, with the column names of EAR's tables where EAR has such a column (docs/energy.md).
std::string sums_csv(const std::string& by, const std::vector<EnergySum>& sums);

// How the mean powers of nodes differ. Powers are compared, because nodes are measured for different times. Nodes
// without a reading are left out.
struct NodeSpread {
  std::vector<std::string> names;
  std::vector<double> watts;
  Spread spread;
};
NodeSpread node_spread(const std::vector<EnergySum>& by_node);

}  // namespace molen::collect
