// The energy of a predicted step on described devices.
#pragma once

#include <vector>

#include "base/units.h"
#include "cluster/cluster.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "sim/factors.h"

namespace molen::sim {

// By how much a device's power in training, above its idle power, may differ from the share of its range that a
// prediction takes: relative to it, with a probability of 80 %. plan::training_load names the measurements.
inline constexpr double kPowerShareSpread = 0.15;

// The spreads are relative: with a probability of 80 % the true value is within them.
struct StepEnergy {
  Joules devices, hosts;  // of all ranks and nodes in one step
  Joules computers() const { return devices + hosts; }
  double site = 0.0;          // J, with the site's cooling and losses (PUE)
  double kg_co2e = 0.0;       // of the site's electricity
  double spread = 0.0;        // of the computers' energy: `power_spread`, and the time's
  double site_spread = 0.0;   // of `site`: that, and the PUE's
  double co2e_spread = 0.0;   // of `kg_co2e`: that, and the intensity's
  double power_spread = 0.0;  // of the computers' mean power
};

// Returns the energy of a step. A device takes its idle power and a share of what is between idle and peak: the shares
// "power_products", "power_memory" and "power_waiting" of the factors, by what the compute stream does. A node takes
// the host's power as well. `time_spread`: the relative spread of the step's time. `between_steps`: time after the step
// in which devices wait, as a share of the step.
StepEnergy energy_of(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                     const cluster::Cluster& cluster, const Factors& factors, double time_spread,
                     double between_steps = 0.0);

// Where the devices' energy of a step goes, of all ranks.
struct WhereJoules {
  // By program::phase_keys. Each stage's seconds are divided as `program::phase_seconds` divides them, and what a stage
  // waits for another one at the end counts as idle. The sum is StepEnergy::devices.
  std::vector<double> phase_j;
  // By program::kCommStreams: of the time in which the stream communicates and nothing is computed beside it. The
  // phases hold this energy too.
  std::vector<double> exposed_j;
};
WhereJoules where_joules(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                         const cluster::Cluster& cluster, const Factors& factors);

}  // namespace molen::sim
