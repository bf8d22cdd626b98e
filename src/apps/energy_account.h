// `molen energy account`: the energy of runs by user, job, project and so on.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace molen::apps {

struct AccountArguments {
  std::vector<std::string> directories{"runs"};
  std::string by = "run", format = "text";
  std::optional<std::string> since, until;
};

int run_energy_account(const AccountArguments& arguments);

}  // namespace molen::apps
