// Compares prediction and measurement at the end of a run: the program's step, simulated with the measurements of
// `molen calibrate`, beside the median of the last steps. A run never fails because there is no prediction.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "train/trainer.h"

namespace molen::train {

class Predicted {
 public:
  Predicted(const Job& job, const exec::Executor& executor, comm::Communicator& world)
      : job_(job), executor_(executor), world_(world) {}

  // Adds a step. Every rank must add the same steps.
  void add(const program::Timeline& timeline);

  // Returns rank 0's comparison, or why there is none. Collective; only rank 0's result is meaningful.
  Result<program::Comparison> compare();

 private:
  program::Timeline median_step();
  Result<program::Comparison> beside(const program::Stages& stages, const program::Timeline& measured) const;

  static constexpr std::size_t kKept = 51;
  const Job& job_;
  const exec::Executor& executor_;
  comm::Communicator& world_;
  std::vector<program::Timeline> timelines_;  // of the last steps
};

// By rank, the seconds of each of its ops that communicate, in the order of its program.
using Durations = std::vector<std::vector<double>>;
// Returns those of all ranks on every rank. Collective.
Durations gather_durations(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                           comm::Communicator& world);

// Sets, for each op of a rank's timeline that communicates, how long the rank waited in it for others
// (OpTime::waited_s). That is its duration here minus its shortest duration on any rank that takes part, because the
// last rank to arrive waits for nobody. The ranks' clocks need not agree.
void set_waiting(const program::Stages& stages, int rank, const Durations& durations, program::Timeline& timeline);

}  // namespace molen::train
