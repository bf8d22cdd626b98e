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
  std::optional<std::string> since, until, database;
};

int run_energy_account(const AccountArguments& arguments);

}  // namespace molen::apps
