#include "optim/loss_scale.h"

#include <algorithm>

#include "base/error.h"

namespace molen::optim {
namespace {

constexpr double kGrowth = 2.0, kBackoff = 0.5;

}  // namespace

LossScale::LossScale(const State& state, std::int64_t window) : state_(state), window_(window) {
  // The comparisons are negated so that NaN is refused.
  if (!(state.scale >= kMinimum) || !(state.scale <= kMaximum))
    throw UsageError("a loss scale of {}: it lies from {} to {}", state.scale, kMinimum, kMaximum);
  if (state.good_steps < 0 || state.skipped < 0)
    throw UsageError("a loss scale after {} good and {} skipped steps", state.good_steps, state.skipped);
  if (window < 1) throw UsageError("a loss scale that doubles after {} steps", window);
}

void LossScale::good() {
  if (++state_.good_steps < window_) return;
  state_.good_steps = 0;
  state_.scale = std::min(state_.scale * kGrowth, kMaximum);
}

void LossScale::overflow(std::int64_t step) {
  // At the smallest scale, good_steps is 0 only directly after a skipped step: the other way to 0 is a doubling, which
  // leads to a larger scale.
  if (state_.scale <= kMinimum && state_.skipped > 0 && state_.good_steps == 0)
    throw Error(
        "step {}: the gradient overflows in fp16 at the smallest loss scale ({}), as in the step before it; the "
        "optimizer was not run. bf16 and fp32 have the range for it (precision.compute, precision.reduce)",
        step, kMinimum);
  ++state_.skipped;
  state_.good_steps = 0;
  state_.scale = std::max(state_.scale * kBackoff, kMinimum);
}

}  // namespace molen::optim
