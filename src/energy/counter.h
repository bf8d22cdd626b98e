// Turns a counter that wraps into a total that does not.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "energy/meter.h"

namespace molen::energy {

// RAPL changes its counters about once in a millisecond (Hahnel et al., "Measuring energy consumption for short code
// paths using RAPL", SIGMETRICS Performance Evaluation Review 40(3), 2012).
inline constexpr Seconds kRaplChangesEvery{0.001};

// `range` is the counter's largest value, after which it starts at 0 again; 0 means unknown, and then the counter must
// not decrease. `wrap_s` is the shortest time in which the counter can wrap; 0 means unknown. When two readings are
// further apart, the number of wraps between them is unknown, which is a gap. When the counter changed by more than it
// can count in the time between two readings, it has begun again, which is a gap too.
class Unwrapper {
 public:
  Unwrapper(std::uint64_t range, double wrap_s) : range_(range), wrap_s_(wrap_s) {}

  // Adds the increase since the last call; the first call only sets the start. Returns a failure for a value beyond the
  // range. Returns a failure for each gap, too: then the total continues from this value.
  Result<Reading> add(std::uint64_t value, double time_s, double joules_per_count) {
    if (range_ > 0 && value > range_)
      return Failure{fmt::format("the counter reads {}, beyond its range {}", value, range_)};
    const bool started = started_;
    const std::uint64_t last = last_;
    const double silence = time_s - time_;
    started_ = true;
    last_ = value;
    time_ = time_s;
    if (!started) return reading_;
    if (silence < 0) {
      ++reading_.gaps;
      return Failure{fmt::format("the clock went back by {:.3f} s", -silence)};
    }
    if (wrap_s_ > 0 && silence > wrap_s_) {
      ++reading_.gaps;
      return Failure{fmt::format(
          "the counter was not read for {:.0f} s and may have wrapped more than once (possible after {:.0f} s)",
          silence, wrap_s_)};
    }
    if (value < last && range_ == 0) {
      ++reading_.gaps;
      return Failure{fmt::format("the counter went back from {} to {}", last, value)};
    }
    const std::uint64_t counted = value >= last ? value - last : value + (range_ - last);
    if (wrap_s_ > 0 && static_cast<double>(counted) * wrap_s_ > static_cast<double>(range_) * (silence + kLateness)) {
      ++reading_.gaps;
      return Failure{fmt::format(
          "the counter went from {} to {} in {:.3f} s, which takes {:.3f} s at the greatest power: it began "
          "again",
          last, value, silence, static_cast<double>(counted) / static_cast<double>(range_) * wrap_s_)};
    }
    reading_.total += Joules(static_cast<double>(counted) * joules_per_count);
    reading_.ticks += static_cast<std::int64_t>(counted);
    return reading_;
  }

  // Notes that the counter has begun again: the energy since the last call is unknown, which is a gap. The next call of
  // `add` only sets the start.
  void restart() {
    ++reading_.gaps;
    started_ = false;
  }

 private:
  // Seconds by which a counter may be updated late, or a thread may be held up between a reading and its time.
  static constexpr double kLateness = 0.1;

  std::uint64_t range_, last_ = 0;
  double wrap_s_, time_ = 0;
  bool started_ = false;
  Reading reading_;
};

}  // namespace molen::energy
