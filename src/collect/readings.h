// The records that a node makes of its meters.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collect/record.h"
#include "energy/accountant.h"

namespace molen::collect {

// The batch system's words for this node's present work; empty where it has none.
struct Labels {
  std::string job, step, user;
  std::string group = {}, account = {}, tag = {};  // of the job
};

// Returns the scopes of a step as periods from `start_s` to `end_s`. A value that the collector would refuse is null,
// with that as its reason.
std::vector<Period> periods_of(const energy::StepEnergy& energy, const energy::Meters& meters, double start_s,
                               double end_s, const Labels& labels);

// Divides records into batches that fit into a line each; node, session and number are left out.
std::vector<Batch> in_batches(std::vector<Period> periods, std::vector<Event> events);

class Readings {
 public:
  // `wall`: seconds since 1970; `steady`: seconds of a clock that nobody sets.
  Readings(energy::Meters meters, Labels labels, std::function<double()> wall = {},
           std::function<double()> steady = {});

  // Returns the meters that are read, and those that are not with their reasons, as events; with a job also its start
  // and its labels.
  std::vector<Batch> describe() const;
  // Returns the events of the end, at the end of the last period.
  std::vector<Batch> farewell() const;
  // Returns the energy since the last call, or since the construction. If the clock was set meanwhile, the period ends
  // at the new time and is as long as it was, and an event says so.
  std::vector<Batch> next();

 private:
  void add_labels(std::vector<Event>& events) const;

  const Labels labels_;
  const std::function<double()> wall_, steady_;
  energy::Accountant accountant_;
  double wall_s_, steady_s_;
};

}  // namespace molen::collect
