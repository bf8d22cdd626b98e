// `molen plan CONFIG --cluster NAME`: the best layouts of a job.
#pragma once

#include <optional>
#include <string>

#include "apps/cli.h"
#include "apps/plan_carbon.h"
#include "cluster/cluster.h"

namespace molen::apps {

struct PlanSearchArguments {
  std::string cluster, objective = "time", format = "text", output;
  std::optional<int> nodes;
  int best = 5, simulate = 200;
  std::optional<std::string> memory, watts;  // limits, as "70GiB" and "3kW"
  std::optional<double> days, kwh;           // limits of the whole run
  PlanCarbonArguments carbon;
};

// Returns the nodes that --nodes says, or all nodes of the cluster. Throws UsageError for a number that it does not
// have.
int nodes_on(const cluster::Cluster& cluster, const std::optional<int>& nodes);

int run_plan_search(const ConfigOptions& options, const PlanSearchArguments& arguments);

}  // namespace molen::apps
