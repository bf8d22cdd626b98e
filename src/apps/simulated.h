// The result of `molen simulate`, as JSON and as text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli.h"
#include "apps/measured_run.h"
#include "apps/whole_run.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "config/config.h"
#include "plan/clock_plan.h"
#include "plan/step_prediction.h"
#include "sim/described_energy.h"
#include "sim/forecast.h"
#include "sim/intervals.h"

namespace molen::apps {

struct Simulated {
  config::Config config;  // resolved
  sim::Forecast step;
  std::optional<plan::AttendedStep> attended = std::nullopt;
  std::string extrapolated = {};  // the measurements that the costs are derived from, if not these conditions
  WholeRun whole_run = {};
  sim::Errors errors = {};                   // of the step
  std::map<std::string, double> kinds = {};  // the spreads of the kinds of ops of the stage that is shown
  // With a description of a cluster: the cluster and the energy.
  std::optional<cluster::Cluster> cluster = std::nullopt;
  int local_ranks = 1;  // ranks of a node
  sim::StepEnergy energy = {};
  std::vector<plan::FrameworkMemory> framework = {};     // of each stage, with framework.kind; empty: molen's step
  std::optional<plan::ClockPlan> clocks = std::nullopt;  // with --clocks
  double step_s() const { return step.seconds(); }
  double spread() const { return sim::spread_of(errors); }
};

// `stage`: the stage whose phases and ops are shown. `measured`: with a run, what it measured itself.
Json simulated_json(const Simulated& simulated, std::size_t stage, const std::vector<OpenChoice>& choices,
                    const std::optional<MeasuredRun>& measured);
void print_simulated(const Simulated& simulated, std::size_t stage, const std::vector<OpenChoice>& choices,
                     const std::optional<MeasuredRun>& measured);

}  // namespace molen::apps
