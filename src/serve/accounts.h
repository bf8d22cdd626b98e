// The energy that the attempts of runs consumed, for accounting by user, job or project (`molen energy account`).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

// One attempt of a run: one job, or a part of one.
struct Attempt {
  std::string run;  // the name of its directory
  std::int64_t number = 0;
  std::string user, group, account, job, step, host;  // account, job and step are Slurm's; empty if not recorded
  std::vector<std::string> tags;                      // run.tags of the run's last attempt
  double start_s = 0.0;                               // s since 1970; NaN if not recorded
  double seconds = 0.0;                               // from the opening of its meters to their last reading
  std::int64_t hosts = 0;
  std::optional<double> joules;            // over the counted scopes; nothing if no meter had a reading
  std::map<std::string, double> by_scope;  // joules of each scope
  std::string partial;                     // what the meters do not cover, in words
  std::optional<double> site_j, kg_co2e;   // with the PUE of its site; its emissions
};

// Returns the attempts of a run in their order, from events.jsonl and energy.jsonl. The consumption of an attempt that
// was killed is known to the next attempt; without one, it is that of its last checkpoint. Damaged lines are left out.
std::vector<Attempt> attempts_of(const fs::path& run);

// The sum over attempts of one value of a key.
struct AccountRow {
  std::string key;  // the user, job, ...; "-" if it is not recorded
  std::int64_t attempts = 0, runs = 0, unmeasured = 0;
  double seconds = 0.0, node_seconds = 0.0;
  double measured_seconds = 0.0;  // of the attempts that measured energy
  double joules = 0.0;
  std::optional<double> site_j, kg_co2e;  // nothing if any measured attempt has none
  // The energy-delay product: the sum over attempts of joules times seconds, J s.
  double edp = 0.0;
};
// `by`: "run", "user", "group", "account", "job", "step" (of a job, such as "7.0"), "tag", "host" or "month" (UTC). An
// attempt with several tags is in the row of each; so these rows may add up to more than all. Rows come by descending
// joules.
const std::vector<std::string>& account_keys();
std::vector<AccountRow> account(const std::vector<Attempt>& attempts, const std::string& by);
Json to_json(const AccountRow& row);
// The mean power of a row, W: joules over the seconds of its attempts; nothing if nothing was measured.
std::optional<double> watts_of(const AccountRow& row);
// Returns a line for each row, with the column names of EAR's tables where EAR has such a column (docs/energy.md).
std::string rows_csv(const std::string& by, const std::vector<AccountRow>& rows);

// Returns a line for each attempt, with the column names of EAR's tables where EAR has such a column (docs/energy.md).
std::string attempts_csv(const std::vector<Attempt>& attempts);

}  // namespace molen::serve
