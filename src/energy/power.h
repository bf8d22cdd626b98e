// Integrates power samples to joules by the trapezoid rule over the measured times.
#pragma once

#include "energy/meter.h"

namespace molen::energy {

// If two samples are further apart than `longest_s`, or the second one is before the first, the energy between them is
// unknown, which is a gap.
class PowerIntegral {
 public:
  explicit PowerIntegral(double longest_s) : longest_s_(longest_s) {}

  Reading add(double watts, double time_s) {
    const double silence = time_s - time_;
    const bool known = silence >= 0 && silence <= longest_s_;  // a clock that went back says nothing
    if (started_ && !known) ++reading_.gaps;
    if (started_ && known) reading_.total += Joules(0.5 * (watts_ + watts) * silence);
    started_ = true;
    watts_ = watts;
    time_ = time_s;
    return reading_;
  }

 private:
  double longest_s_, watts_ = 0, time_ = 0;
  bool started_ = false;
  Reading reading_;
};

}  // namespace molen::energy
