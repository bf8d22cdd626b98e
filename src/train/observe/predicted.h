// Compares prediction and measurement at the end of a run: the program's step, simulated with the measurements of
// `molen calibrate`, beside the median of the last steps. A run never fails because there is no prediction.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "exec/executor.h"
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
  Result<program::Comparison> beside(program::Timeline measured) const;

  static constexpr std::size_t kKept = 51;
  const Job& job_;
  const exec::Executor& executor_;
  comm::Communicator& world_;
  std::vector<program::Timeline> timelines_;  // of the last steps
};

// Sets, for each collective of `timeline`, how long this rank waited in it for others (OpTime::waited_s). That is its
// duration here minus its shortest duration on any rank of the group, because the last rank to arrive waits for nobody.
// The ranks' clocks need not agree. Collective; rank 0's timeline becomes complete.
void tell_waiting(const program::Program& program, const std::vector<program::Expanded>& ops,
                  program::Timeline& timeline, comm::Communicator& world);

}  // namespace molen::train
