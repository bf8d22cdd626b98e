// The console output of a run: its first lines, a line a step, notes and its last lines. Rank 0 only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/json.h"
#include "store/console.h"
#include "store/metrics.h"
#include "train/observe/predicted.h"
#include "train/trainer.h"

namespace molen::train {

class RunConsole {
 public:
  RunConsole(const Job& job, std::int64_t total_steps, std::int64_t stop_step);

  void begin(std::int64_t start_step, const MemoryPrediction& memory, const std::string& state_hash);
  // Prints what is measured. `meters`: the meters' description, with the "unavailable" ones and why. `partial`: what
  // the joules leave out; empty when they leave out nothing. `some`: whether anything is measured.
  void energy(const Json& meters, bool some, const std::string& partial);
  // `modelled_w`: the mean power of the parts that a model estimates.
  void step(const store::StepMetrics& metrics, bool skipped, std::optional<double> modelled_w);
  void set_length(std::int64_t total_steps, std::int64_t stop_step) {
    total_steps_ = total_steps, stop_step_ = stop_step;
  }
  void note(const std::string& line);
  // `measured_j`: joules of a step, if they are measured; `partial`: what they leave out, as in `energy`.
  void prediction(const Prediction& prediction, std::optional<double> measured_j, const std::string& partial);
  // `communication`, `phases` (the shares of phases in this attempt's joules) and `modelled` (joules that were not
  // measured, in this attempt) may be empty.
  void end(std::int64_t step, const std::string& reason, const std::string& communication, const std::string& totals,
           const std::string& phases, const std::string& modelled);

 private:
  const Job& job_;
  std::int64_t total_steps_, stop_step_;
  void say(const std::string& text);  // prints a line that stays on screen, wrapped when it is too long
  bool keeps_line(std::int64_t step);

  bool terminal_;
  store::ConsoleStyle style_;
  store::LiveLine live_;
  std::optional<double> kept_;  // time at which the last full line was written
  std::deque<double> recent_;   // seconds of the last steps
};

}  // namespace molen::train
