// Slow ranks, failures and checkpoints of a long run, by formulas alone (docs/whole-run.md). Nothing is simulated here.
#pragma once

#include <optional>

#include "cluster/cluster.h"

namespace molen::plan {

// --- the slowest rank ------------------------------------------------------------------------------------------------

// How the time of a step differs between devices. The time of a device is normal, with mean 1 and the standard
// deviation `jitter`; on a slow node it is `slow_factor` times as long. Nodes are slow independently of each other.
struct StepVariation {
  double jitter = 0.0;       // at least 0
  double slow_share = 0.0;   // probability that a node is slow, 0 to 1
  double slow_factor = 1.0;  // at least 1
  int devices_of_node = 1, nodes = 1;
};
// Returns the expected time of a synchronous step, which ends when its slowest device does, over that of one device
// that is not slow. The expectation of a maximum is the integral over its distribution function, the product of those
// of all devices (David and Nagaraja, Order Statistics, 3rd edition 2003, section 3.1); it is integrated by Simpson's
// rule.
double slowest_factor(const StepVariation& variation);

// --- failures --------------------------------------------------------------------------------------------------------

// The time that a stretch of work between two checkpoints takes when failures come as a Poisson process. A failure
// loses all of the stretch so far; then the job restarts, and a failure during the restart begins the restart again.
struct StretchTime {
  double seconds = 0.0;     // expected; the sum of the work, `redone_s` and `restarts_s`
  double redone_s = 0.0;    // expected seconds of work that failures lost
  double restarts_s = 0.0;  // expected seconds of restarts
  double failures = 0.0;    // expected number
  double variance = 0.0;    // of the seconds, in s^2
};
// Returns the time of a stretch of `work_s` seconds, the saving of its checkpoint included. `mtbf_s` is the mean time
// between failures of the whole job, above 0, and may be infinite. The expectation is that of the complete model of
// Daly 2006 (A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
// Systems 22): M exp(R / M) (exp(work / M) - 1). Figures too large for a double are infinite.
StretchTime stretch_time(double work_s, double mtbf_s, double restart_s);

// Returns the seconds of work between two checkpoints with which a run ends soonest, by the same model: the minimum of
// Daly's expectation over the interval, which does not depend on the time of a restart. Infinite without failures.
double best_interval(double save_s, double mtbf_s);
// Returns the first approximation of it, sqrt(2 save M) (Young 1974, A first order approximation to the optimum
// checkpoint interval, Communications of the ACM 17).
double young_interval(double save_s, double mtbf_s);

// --- the figures of a cluster ----------------------------------------------------------------------------------------

// The figures from which a whole run is predicted: those of the description, and assumptions for what it lacks.
struct RunFigures {
  cluster::Figure step_jitter, slow_node_share, slow_node_factor, node_mtbf, restart, node_bandwidth;
  std::optional<cluster::Figure> write_bandwidth, read_bandwidth;  // absent: only the nodes limit them
};
// Returns the figures of a cluster. The source of each assumption begins with "assumption:".
RunFigures run_figures(const cluster::Cluster& cluster);

}  // namespace molen::plan
