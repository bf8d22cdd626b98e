// The energy in a collector's database, added up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collect/record.h"

namespace molen::collect {

// The kinds of sums: by "node", "job", "step" (of a job, such as "7.0"), "user" or "day" (UTC).
const std::vector<std::string>& sum_keys();

struct SumQuery {
  std::string by = "node";
  // Only periods that began at `since_s` or later and before `until_s`, in seconds since 1970.
  double since_s = 0, until_s = 2 * kLatestTimeS;
};

struct EnergySum {
  std::string key;               // empty where the periods have none (no job, no user)
  std::optional<double> joules;  // of the scopes that count; null when nothing was measured
  std::int64_t nodes = 0;
  std::int64_t without_reading = 0;  // periods, of all scopes
  double from_s = 0, until_s = 0;    // of the first period and of the last, since 1970
  bool operator==(const EnergySum&) const = default;
};

// Returns the sums of a database that `molen energy collect` wrote ("sqlite:FILE", "postgresql://..."), in the order of
// their keys. Changes nothing. Throws as open_database does, and UsageError if the database has no such tables.
std::vector<EnergySum> energy_sums(const std::string& words, const SumQuery& query);

}  // namespace molen::collect
