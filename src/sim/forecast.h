// A predicted step. Most micro-batches of a long step repeat each other, so a forecast simulates few of them and counts
// the others, where the simulation proves that they take their time again and again (periods.h). Otherwise it simulates
// every op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "sim/costs.h"
#include "sim/described_energy.h"
#include "sim/intervals.h"
#include "sim/periods.h"

namespace molen::sim {

// Returns a sum over a step with `times` periods more, where `step` and `period` have the sum of each.
double with_periods(double step, double period, std::int64_t times);
std::vector<double> with_periods(const std::vector<double>& step, const std::vector<double>& period,
                                 std::int64_t times);
program::PhaseSeconds with_periods(const program::PhaseSeconds& step, const program::PhaseSeconds& period,
                                   std::int64_t times);
StepEnergy with_periods(const StepEnergy& step, const StepEnergy& period, std::int64_t times);
WhereJoules with_periods(const WhereJoules& step, const WhereJoules& period, std::int64_t times);

class Forecast {
 public:
  // Takes the programs of all stages, as `Stages` does, and throws as `simulate` does. With `every_op` it simulates
  // each op of the step.
  Forecast(std::vector<program::Program> programs, const Costs& costs, bool every_op = false);

  std::size_t size() const { return all_->size(); }
  // Returns the program of a stage. Its schedule may have fewer micro-batches than its setting says. Its memory plan is
  // that of all of them.
  const program::Program& program(std::size_t stage) const { return all_->program(stage); }
  bool has_every_op() const { return more_ == 0; }
  // The stages and the timelines of a forecast of every op; throw Error for another one.
  const program::Stages& stages() const;
  const std::vector<program::Timeline>& timelines() const;

  // Returns a sum over the time of the whole step. `of` gets stages and timelines, and returns what `with_periods`
  // takes. It gets the timelines of what is simulated, and those of one period: there an op that goes on at the end of
  // the period is cut in two, with its rest at the beginning. So it must not count ops, nor take a maximum or a share
  // of sums.
  template <class Of>
  auto sum(const Of& of) const {
    const auto step = of(*all_, timelines_);
    return more_ == 0 ? step : with_periods(step, of(*period_, period_timelines_), more_);
  }
  // Calls `found` with each simulated op of a stage, its time, and how many ops of the step it stands for.
  template <class Found>
  void each_op(std::size_t stage, const Found& found) const {
    const auto& ops = all_->ops(stage);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const bool again = more_ > 0 && i >= period_ops_[stage].first && i < period_ops_[stage].end;
      found(ops[i], timelines_[stage].ops[i], again ? 1 + more_ : std::int64_t{1});
    }
  }
  // Returns the seconds from one step to the next, with those between steps (Costs::between_steps), in which no op
  // runs.
  double seconds() const;
  // Returns the stage that computes for the longest time, which decides the step.
  std::size_t busiest_stage() const;
  StepEnergy energy(const cluster::Cluster& cluster, const Factors& factors, double time_spread) const;
  program::PhaseSeconds phases(std::size_t stage) const;
  // Return what errors_of_step and spreads_of_kinds (intervals.h) say of the micro-batches that are simulated. Errors
  // are relative, and the others repeat these.
  Errors errors(const OpErrors& of) const;
  std::map<std::string, double> spreads_of_kinds(std::size_t stage, const OpErrors& of) const;

 private:
  // Simulates `kept` of the blocks. Returns whether the others follow from them, as many at a time as one of `every`
  // says; if not, the programs are as before.
  bool take_few(std::vector<program::Program>& programs, const Costs& costs, Blocks blocks, std::size_t kept,
                const std::vector<std::size_t>& every);
  void cut_out(const Period& period);

  double between_steps_ = 0.0;          // Costs::between_steps
  std::optional<program::Stages> all_;  // of the micro-batches that are simulated
  std::vector<program::Timeline> timelines_;
  std::int64_t more_ = 0;                             // periods of the step beside those that are simulated
  std::vector<program::Stages::OpRange> period_ops_;  // of each stage: the ops of one period
  std::optional<program::Stages> period_;             // these ops, and their times within a period
  std::vector<program::Timeline> period_timelines_;
};

}  // namespace molen::sim
