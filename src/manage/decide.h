// Decides the limits that a power cap asks of its nodes, and the warnings of an energy cap. Pure and deterministic.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "collect/limits.h"
#include "manage/caps_file.h"
#include "manage/nodes.h"

namespace molen::manage {

// The limits of each node, by its name.
using SiteLimits = std::map<std::string, std::vector<collect::Limit>>;

struct PowerDecision {
  bool limiting = false;  // limits hold
  bool met = true;        // false: what no limit bounds and the least limits exceed the cap together
  double watts = 0;       // that the nodes count with
  double least_w = 0;     // below which no limits can bring them
  // With limits, what the nodes may draw at most: the limits and what no limit bounds. It is within the cap if `met`.
  double bound_w = 0;
  SiteLimits limits;  // of the nodes that can limit something; empty where no limits hold
};
// `was_limiting`: whether the cap had limits until now. A soft cap begins to limit above the cap and lifts below
// `lift_at` of it; a hard one always limits.
PowerDecision decide(const PowerCap& cap, bool was_limiting, const std::vector<NodeNow>& nodes);

// Returns the limits that all of several caps allow: of each setting the least. A node or setting that one of them
// leaves out has what the others say.
SiteLimits least_of(const SiteLimits& a, const SiteLimits& b);

struct EnergyDecision {
  double joules = 0;          // measured and assumed together
  double percent = 0;         // of the cap
  std::vector<int> warnings;  // levels that are reached and were not warned of yet, ascending
};
// `measured_j`: in this period, over the scopes that count. `assumed_j`: of the time for which nodes have no readings.
EnergyDecision decide(const EnergyCap& cap, double measured_j, double assumed_j, const std::set<int>& warned);

// The readings of a scope that counts, in one period of an energy cap.
struct ScopeCover {
  std::string node, scope;
  double joules = 0;               // measured
  double covered_s = 0;            // that the readings are of
  double first_s = 0, last_s = 0;  // from the begin of the first to the end of the last
};
// Returns the joules for the time between the readings of each scope, at the mean power of its readings.
double joules_of_gaps(const std::vector<ScopeCover>& covers);

// Returns the joules of nodes for the time from the end of the last reading of each scope, or from `from_s`, until
// `now_s`, at the power that they count with. A scope with a reading that is not old adds nothing.
double assumed_joules(const std::vector<NodeNow>& nodes, double from_s, double now_s);

}  // namespace molen::manage
