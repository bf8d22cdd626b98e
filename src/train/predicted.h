// Predicted beside measured at the end of a run: the program through its other consumer, simulated with what `molen
// calibrate` measured, beside the median of the last steps. That there is no prediction never fails a run.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/timeline.h"
#include "train/trainer.h"

namespace molen::train {

class Predicted {
 public:
  Predicted(const Job& job, const exec::Executor& executor, comm::Communicator& world)
      : job_(job), executor_(executor), world_(world) {}

  // A step, on every rank alike.
  void add(const program::Timeline& timeline);

  // Rank 0's comparison, or why there is none. Collective; only rank 0 has what it returns.
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

// Says of each collective of `timeline` how long this rank waited in it for others (OpTime::waited_s): what it took
// longer than on that rank of its group where it took least, for whoever comes last waits for nobody. Clocks of ranks
// need not agree. Collective; what rank 0 gets is complete.
void tell_waiting(const program::Program& program, const std::vector<program::Expanded>& ops,
                  program::Timeline& timeline, comm::Communicator& world);

}  // namespace molen::train
