// Dynamic loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", arXiv 1710.03740, section 3.2): fp16 has
// no values below 2^-24 and none above 65504, so the gradient is made of a multiple of the loss. A step whose gradient
// overflows is skipped and the multiple halved; after a number of good steps in a row it is doubled.
#pragma once

#include <cstdint>

namespace molen::optim {

class LossScale {
 public:
  static constexpr double kMinimum = 1.0;
  static constexpr double kMaximum = 0x1p+126;  // the largest whose double fp32 still holds

  // What a checkpoint keeps.
  struct State {
    double scale = 65536.0;       // of the next step, kMinimum to kMaximum
    std::int64_t good_steps = 0;  // since it was last changed, or a step was skipped
    std::int64_t skipped = 0;     // steps of the whole run
    bool operator==(const State&) const = default;
  };

  // Doubled after `window` good steps in a row, at least 1. Throws UsageError for a state that is none.
  LossScale(const State& state, std::int64_t window);

  double scale() const { return state_.scale; }
  std::int64_t skipped() const { return state_.skipped; }
  const State& state() const { return state_; }

  // After a step whose gradient was finite.
  void good();
  // After step `step` (for people), whose gradient was not, so that it was skipped. Throws Error where that happened at
  // the smallest scale to the second step in a row: then no scale helps.
  void overflow(std::int64_t step);

 private:
  State state_;
  std::int64_t window_;
};

}  // namespace molen::optim
