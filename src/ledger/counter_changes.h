// The changes of a counter of energy, in whole ticks and with the times at which they happened. A counter is polled
// more often than it is updated, or less often. Either way a change tells when the counter was updated, within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace molen::ledger {

// All times of this module are seconds of one steady clock of the host.
struct Counter {
  double joules_per_tick = 0;
  // The number of ticks after which the counter begins again at 0: one more than its largest value. 0: it never wraps.
  std::uint64_t period = 0;
  double wrap_s = 0;    // the shortest time in which it can wrap; 0: longer than any silence
  double update_s = 0;  // the longest time between two updates of the counter: 0.1 s for NVML, 0.001 s for RAPL
  double longest_silence_s = 1.0;  // when two good samples are further apart, the time between them is a gap
  // When the counter stood still for longer, the time until its next change is a gap: the phases of that time need not
  // be kept.
  double longest_still_s = 10.0;
  // More power than the scope can draw; 0: unknown. An increase that needs more is a restart of the counter. A counter
  // that wraps needs this, because a restart looks like a wrap.
  double most_watts = 0;
};

struct Sample {
  double time_s = 0;
  std::optional<std::uint64_t> ticks;  // null: the counter could not be read
  bool restarted = false;              // the meter says that the counter began again since the last sample
};

// The bounds of the time of an update.
struct Edge {
  double earliest_s = 0, latest_s = 0;
};

// The ticks by which the counter grew from one update that was seen to the next one. `from` is null where the earlier
// update was not seen: at the start, and after a gap.
struct Change {
  std::optional<Edge> from;
  Edge to;
  std::int64_t ticks = 0;
};

// A time from one good sample to the next one in which samples failed or are missing, or in which the counter
// restarted; or a time in which the counter stood still for too long.
struct Gap {
  double start_s = 0, end_s = 0;
  std::optional<std::int64_t> ticks;  // null: the energy is unknown, and no entry contains it
  std::string reason;
};

class CounterChanges {
 public:
  // Throws Error when a tick has no size, and when a counter that wraps has no bound of its power.
  explicit CounterChanges(Counter counter);

  // Returns the change that this sample shows, if it shows one. Throws Error when the time of a sample is not later
  // than that of the sample before, and when a value is not below the period.
  std::optional<Change> add(const Sample& sample);

  // The sum of all increases that are known, over changes and gaps.
  std::int64_t total_ticks() const { return total_ticks_; }
  // Returns the gaps since the last call, so that a long run can write them down and need not keep them.
  std::vector<Gap> take_gaps() { return std::exchange(gaps_, {}); }
  // The next change begins at this time or later.
  double next_from_s() const;
  const Counter& counter() const { return counter_; }

 private:
  std::optional<std::int64_t> increase(const Sample& sample, std::string* reason) const;

  Counter counter_;
  std::optional<Sample> last_;    // the last good sample
  std::optional<double> seen_s_;  // the time of the last sample of any kind
  bool failing_ = false;          // samples failed since last_
  std::optional<Edge> edge_;      // the last update that was seen, unless a gap followed
  std::int64_t total_ticks_ = 0;
  std::vector<Gap> gaps_;
};

}  // namespace molen::ledger
