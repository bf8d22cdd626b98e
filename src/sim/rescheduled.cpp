#include "sim/rescheduled.h"

#include <algorithm>

namespace molen::sim {

void reduce_last(const std::vector<program::Expanded>& ops, std::vector<double>& work) {
  double* last = nullptr;
  double all = 0.0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    const auto axis = program::axis_of(step.op);
    if (step.phase != program::Phase::kGradientReduce || !axis || stream_of(*axis) != program::Stream::kDpComm)
      continue;
    all += work[i];
    work[i] = 0.0;
    last = &work[i];
  }
  if (last) *last = all;
}

void gather_in_forward(const std::vector<program::Expanded>& ops, std::vector<double>& work) {
  double forward = 0.0, gathers = 0.0;
  bool updated = false;
  std::vector<double*> at_end;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    updated = updated || std::holds_alternative<program::OptimizerStep>(step.op);
    const bool first = step.phase == program::Phase::kForward && ops[i].micro_batch == 0;
    if (first && step.stream == program::Stream::kCompute) forward += work[i];
    if (!updated || !std::holds_alternative<program::AllGather>(step.op)) continue;
    gathers += work[i];
    at_end.push_back(&work[i]);
  }
  for (double* seconds : at_end) *seconds *= std::max(0.0, 1.0 - forward / gathers);
}

}  // namespace molen::sim
