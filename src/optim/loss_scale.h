// Dynamic loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", arXiv 1710.03740, section 3.2): fp16 has
// no values below 2^-24 and none above 65504, so the gradient is computed from a multiple of the loss. A step whose
// gradient overflows is skipped and the multiple is halved; after a number of good steps in a row it is doubled.
#pragma once

#include <cstdint>

namespace molen::optim {

class LossScale {
 public:
  static constexpr double kMinimum = 1.0;
  static constexpr double kMaximum = 0x1p+126;  // the largest whose double is still finite in fp32

  // The state that a checkpoint keeps.
  struct State {
    double scale = 65536.0;       // of the next step, kMinimum to kMaximum
    std::int64_t good_steps = 0;  // since the scale changed or a step was skipped
    std::int64_t skipped = 0;     // skipped steps of the whole run
    bool operator==(const State&) const = default;
  };

  // The scale is doubled after `window` good steps in a row, at least 1. Throws UsageError for an invalid state.
  LossScale(const State& state, std::int64_t window);

  double scale() const { return state_.scale; }
  std::int64_t skipped() const { return state_.skipped; }
  const State& state() const { return state_; }

  // To be called after a step whose gradient was finite.
  void good();
  // To be called after step `step`, which was skipped because its gradient was not finite. Throws Error, which names
  // the step, when it is the second such step in a row at the smallest scale: then no scale helps.
  void overflow(std::int64_t step);

 private:
  State state_;
  std::int64_t window_;
};

}  // namespace molen::optim
