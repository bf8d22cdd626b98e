// Learning-rate schedules: a pure function of the step.
#pragma once

#include <cstdint>

namespace molen::optim {

enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd };

// Warm-up is linear from 0 (reached at step 0; step 1 has lr/warmup). Then:
//   kCosine  peak -> min over the rest, half a cosine
//   kLinear  peak -> min over the rest, straight
//   kWsd     peak until the last `decay_steps`, then straight to min (warm-up, stable, decay)
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak_lr = 3e-4, min_lr = 3e-5;
  std::int64_t warmup_steps = 0, total_steps = 1;
  std::int64_t decay_steps = 0;  // kWsd; 0 means a tenth of the total

  // Returns the learning rate of step 1, 2, ..., total_steps; steps past the horizon keep the last value.
  double lr(std::int64_t step) const;
};

}  // namespace molen::optim
