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

// The kinds of sums: by "node", "job", "step" (of a job, such as "7.0"), "user", "day" (UTC), and by the "group",
// "account" or "tag" of the job (collect/job_labels.h).
const std::vector<std::string>& sum_keys();

struct SumQuery {
  std::string by = "node";
  // Only periods that began at `since_s` or later and before `until_s`, in seconds since 1970.
  double since_s = 0, until_s = 2 * kLatestTimeS;
  std::string job = {};  // only periods of this job; empty: all periods
};

// A part of nodes, whether a sum counts it or not: its joules, and the time in which at least one node had a reading of
// it.
struct PartEnergy {
  double joules = 0, seconds = 0;
  bool operator==(const PartEnergy&) const = default;
};
// Nothing where no meter has read the part. `cpu` is cpu-package0 and so on, else `cpu`, else grace0 and so on; `dram`
// is dram0 and so on, else `dram`; `gpu` is gpu0 and so on, else accel0 and so on: of each node the first of these that
// it has.
struct NodeParts {
  std::optional<PartEnergy> node, cpu, dram, gpu;
  bool operator==(const NodeParts&) const = default;
};

struct EnergySum {
  std::string key;               // empty where the periods have none (no job, no user)
  std::optional<double> joules;  // of the scopes that count; null when nothing was measured
  std::int64_t nodes = 0;
  std::int64_t without_reading = 0;  // periods, of all scopes
  double from_s = 0, until_s = 0;    // of the first period and of the last, since 1970
  // The time in which at least one node had a reading of a scope that counts, and the sum of these times over nodes.
  // A moment that several periods cover counts once.
  double seconds = 0, node_seconds = 0;
  // The energy-delay product, J s: over the steps of jobs, the sum of the joules of a step times its seconds, both
  // within this sum. A job without steps is one step. Null without a reading of a job: what has no job has no delay.
  std::optional<double> edp = {};
  NodeParts parts = {};
  std::string node = {}, job = {}, step = {}, user = {};  // where all periods have the same; else empty
  // The number of periods without a reading, and their seconds. Each scope that counts adds its own periods.
  std::int64_t unread = 0;
  double unread_s = 0;
  std::string counted = {};                        // the scopes that count: "cpu-package0 dram0"; only in sums by node
  std::string group = {}, account = {}, tag = {};  // of the jobs, as for `job`
  bool operator==(const EnergySum&) const = default;

  // The mean power of all nodes together, W: joules over seconds.
  std::optional<double> watts() const;
};

// Returns the sums of a database that `molen energy collect` wrote ("sqlite:FILE", "postgresql://..."), in the order of
// their keys. Changes nothing. Throws as open_database does, and UsageError if the database has no such tables, which
// for the labels of jobs is so until a collector of this version has opened it.
std::vector<EnergySum> energy_sums(const std::string& words, const SumQuery& query);

Json to_json(const EnergySum& sum);

// Returns a line for each sum, with the column names of EAR's tables where EAR has such a column (docs/energy.md).
std::string sums_csv(const std::string& by, const std::vector<EnergySum>& sums);

// The share of a node's seconds that may lack a reading of a scope that counts, for its mean power to be compared. It
// is far less than the share that makes an outlier. The last period of a job is often too short for a reading.
inline constexpr double kMostUnreadShare = 0.01;

// Compares the mean powers of nodes (W). Powers are compared, because nodes are measured for different times. Left out
// are nodes without a reading, those that lack readings for more than kMostUnreadShare of their seconds, and those
// whose scopes that count are not those of most others.
Comparison compare_nodes(const std::vector<EnergySum>& by_node);

}  // namespace molen::collect
