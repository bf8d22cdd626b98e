#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace molen::optim {

double Schedule::lr(std::int64_t step) const {
  MOLEN_CHECK(step >= 1, "learning rate of step {}", step);
  const std::int64_t s = std::min(step, total_steps);
  if (warmup_steps > 0 && s <= warmup_steps)
    return peak_lr * static_cast<double>(s) / static_cast<double>(warmup_steps);
  // Returns the share of the steps from `from` to the horizon that are done, 0 to 1.
  const auto fraction = [&](std::int64_t from) {
    return total_steps > from ? static_cast<double>(s - from) / static_cast<double>(total_steps - from) : 1.0;
  };
  switch (kind) {
    case ScheduleKind::kConstant:
      return peak_lr;
    case ScheduleKind::kLinear:
      return peak_lr + (min_lr - peak_lr) * fraction(warmup_steps);
    case ScheduleKind::kCosine:
      return min_lr + 0.5 * (peak_lr - min_lr) * (1.0 + std::cos(std::numbers::pi * fraction(warmup_steps)));
    case ScheduleKind::kWsd: {
      const std::int64_t decay = decay_steps > 0 ? decay_steps : std::max<std::int64_t>(1, total_steps / 10);
      const std::int64_t from = std::max(warmup_steps, total_steps - decay);
      return s <= from ? peak_lr : peak_lr + (min_lr - peak_lr) * fraction(from);
    }
  }
  throw Error("unknown schedule {}", static_cast<int>(kind));
}

}  // namespace molen::optim
