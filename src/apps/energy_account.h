// `molen energy account`: the energy of runs by user, job, project and so on, or that of a site's nodes from the
// database of its collector.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace molen::apps {

struct AccountArguments {
  std::vector<std::string> directories{"runs"};
  std::string format = "text";
  std::optional<std::string> by;  // "run", or "node" of a database
  std::optional<std::string> since, until, database, job;
  bool events = false;  // what happened, instead of sums
};

int run_energy_account(const AccountArguments& arguments);

// That of a database (energy_site_account.cpp).
int run_site_account(const AccountArguments& arguments);

// Returns the key that --by names, or the first of `keys`. Throws UsageError for another one.
std::string chosen_key(const AccountArguments& arguments, const std::vector<std::string>& keys);
// Returns a value in a unit for a table; "-" for one that is not known.
std::string shown(const std::optional<double>& value, double unit);

}  // namespace molen::apps
