// Compares the joules of a counter with those of the power that the same device shows.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "base/result.h"

namespace molen::energy {

// Drivers have shown a counter and a power of one idle GPU that were 187 J and 327 J apart over 5 s (ml-energy/zeus,
// issue 181), and nothing in either says which is right. A power is often smoothed over a second, and a counter changes
// every 100 ms, so the two may differ by about a second of the greatest power however long they are compared. Beyond
// that, samples of the power of an A100, which see a quarter of the time, may miss what happens between them (Yang et
// al., SC 2024, arXiv 2312.02741).
//
// The two are compared over windows, so that a fault late in a long run shows as well, and the greatest difference
// stays known.
class CrossCheck {
 public:
  static constexpr double kMostShare = 1.0 / 3;  // of the larger of the two
  static constexpr double kMostSeconds = 1.5;    // of the greatest power
  static constexpr double kWindow = 60.0;        // seconds that are compared
  static constexpr double kLongestApart = 1.0;   // seconds; what lies between readings further apart is not compared

  // Adds a reading of both at one time. `counter_j` never decreases.
  void add(double counter_j, double watts, double time_s) {
    const double seconds = time_s - time_s_;
    if (started_ && seconds >= 0.0 && seconds <= kLongestApart) {
      now_.counted_j += counter_j - counter_j_;
      now_.sampled_j += 0.5 * (watts_ + watts) * seconds;
      now_.seconds += seconds;
    }
    now_.most_w = std::max(now_.most_w, watts);
    started_ = true, counter_j_ = counter_j, watts_ = watts, time_s_ = time_s;
    if (now_.seconds < kWindow) return;
    if (now_.excess() > worst_.excess()) worst_ = now_;
    now_ = {};
  }

  // Says by how much the two differed most; empty while they may have been the same.
  std::string doubt() const {
    const Window& w = now_.excess() > worst_.excess() ? now_ : worst_;
    if (w.excess() <= 0.0) return "";
    return fmt::format(
        "in {:.0f} s the counter rose by {:.4g} J, and the power that the device shows makes {:.4g} J; one of the two "
        "is wrong",
        w.seconds, w.counted_j, w.sampled_j);
  }

 private:
  struct Window {
    double counted_j = 0.0, sampled_j = 0.0, seconds = 0.0, most_w = 0.0;
    // The joules by which the two differ more than they may.
    double excess() const {
      return std::abs(counted_j - sampled_j) - kMostShare * std::max(counted_j, sampled_j) - kMostSeconds * most_w;
    }
  };
  Window now_, worst_;
  double counter_j_ = 0.0, watts_ = 0.0, time_s_ = 0.0;
  bool started_ = false;
};

}  // namespace molen::energy
