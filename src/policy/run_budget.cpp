#include "policy/run_budget.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "policy/paired.h"

namespace molen::policy {
namespace {

// Returns how often something happens that follows each `every`-th step, and the last one.
std::int64_t times(std::int64_t every, const RunAhead& ahead, std::int64_t last) {
  const std::int64_t due = last / every - ahead.step / every + (ahead.pending && ahead.step % every == 0 ? 1 : 0);
  return due + (last % every == 0 ? 0 : 1);
}

std::int64_t saves(const RunCosts& costs, const RunAhead& ahead, std::int64_t last) {
  if (ahead.save_every > 0) return times(ahead.save_every, ahead, last);
  const double seconds = static_cast<double>(last - ahead.step) * costs.step.mean.seconds;
  return 1 + (ahead.save_every_s > 0.0 ? static_cast<std::int64_t>(seconds / ahead.save_every_s) : 0);
}

}  // namespace

void RecentSteps::add(const Use& step) {
  steps_.push_back(step);
  seconds_ += step.seconds;
  while (steps_.size() > kSteps && seconds_ - steps_.front().seconds >= kSeconds) {
    seconds_ -= steps_.front().seconds;
    steps_.pop_front();
  }
}

std::optional<StepUse> RecentSteps::use() const {
  if (steps_.size() < kLeastSteps || seconds_ < kLeastSeconds) return std::nullopt;
  const std::size_t length = steps_.size() / kBlocks, first = steps_.size() - kBlocks * length;
  std::vector<double> blocks(kBlocks);
  StepUse use;
  for (std::size_t i = first; i < steps_.size(); ++i) {
    blocks[(i - first) / length] += steps_[i].joules / static_cast<double>(length);
    use.mean.seconds += steps_[i].seconds / static_cast<double>(kBlocks * length);
  }
  for (const double block : blocks) use.mean.joules += block / kBlocks;
  double squares = 0.0;
  for (const double block : blocks) squares += (block - use.mean.joules) * (block - use.mean.joules);
  const double of_block = squares / (kBlocks - 1);
  use.mean_variance = of_block / kBlocks;
  use.step_variance = of_block * static_cast<double>(length);
  use.degrees = kBlocks - 1;
  return use;
}

Ahead needed(const RunCosts& costs, const RunAhead& ahead, std::int64_t last) {
  MOLEN_CHECK(last >= ahead.step, "the end of a run at step {}, which has done {}", last, ahead.step);
  const auto steps = static_cast<double>(last - ahead.step);
  Use sum{steps * costs.step.mean.joules, steps * costs.step.mean.seconds};
  const auto add = [&](const std::optional<Use>& one, std::int64_t count) {
    if (!one) return;
    sum.joules += static_cast<double>(count) * one->joules;
    sum.seconds += static_cast<double>(count) * one->seconds;
  };
  add(costs.save, saves(costs, ahead, last));
  if (ahead.validate_every > 0) add(costs.validation, times(ahead.validate_every, ahead, last));
  const double variance = steps * steps * costs.step.mean_variance + steps * costs.step.step_variance;
  const double half =
      variance > 0.0 ? student_quantile(0.5 * (1.0 + kRangeConfidence), costs.step.degrees) * std::sqrt(variance) : 0.0;
  return {{sum.joules, std::max(0.0, sum.joules - half), sum.joules + half}, sum.seconds};
}

bool surely_exceeds(const Left& left, const RunCosts& costs, const RunAhead& ahead, std::int64_t last,
                    const Emissions& emissions) {
  MOLEN_CHECK(!left.kg || emissions, "a budget of emissions without an intensity");
  const Ahead need = needed(costs, ahead, last);
  return (left.joules && need.joules.low > *left.joules) ||
         (left.kg && emissions(need.joules.low, need.seconds) > *left.kg);
}

std::int64_t last_paid(const Left& left, const RunCosts& costs, const RunAhead& ahead, std::int64_t last, Bound bound,
                       const Emissions& emissions) {
  MOLEN_CHECK(!left.kg || emissions, "a budget of emissions without an intensity");
  const auto paid = [&](std::int64_t step) {
    const Ahead need = needed(costs, ahead, step);
    const double joules = bound == Bound::kHigh ? need.joules.high : need.joules.value;
    return !(left.joules && joules > *left.joules) && !(left.kg && emissions(joules, need.seconds) > *left.kg);
  };
  std::int64_t good = ahead.step, bad = last + 1;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (paid(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace molen::policy
