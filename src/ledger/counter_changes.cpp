#include "ledger/counter_changes.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace molen::ledger {

CounterChanges::CounterChanges(Counter counter) : counter_(counter) {
  if (!(counter.joules_per_tick > 0))
    throw Error("a counter of {} J a tick: a positive size is needed", counter.joules_per_tick);
  if (counter.period > 0 && !(counter.most_watts > 0))
    throw Error("a counter that wraps after {} ticks needs most_watts, which tells a restart from a wrap",
                counter.period);
}

// Returns the ticks since the last good sample; null, with the reason, when they are unknown.
std::optional<std::int64_t> CounterChanges::increase(const Sample& sample, std::string* reason) const {
  const double silence_s = sample.time_s - last_->time_s;
  const std::uint64_t now = *sample.ticks, before = *last_->ticks;
  if (sample.restarted) {
    *reason = "the meter says that the counter restarted";
    return std::nullopt;
  }
  if (counter_.wrap_s > 0 && silence_s > counter_.wrap_s) {
    *reason = fmt::format("no sample for {:.1f} s, in which the counter may have wrapped more than once", silence_s);
    return std::nullopt;
  }
  if (now < before && counter_.period == 0) {
    *reason = fmt::format("the counter went back from {} to {}", before, now);
    return std::nullopt;
  }
  const std::uint64_t ticks = now >= before ? now - before : now + (counter_.period - before);
  // The energy that appears between two samples may have been drawn since the last update before the earlier one.
  const double most_j = counter_.most_watts * (silence_s + 2 * counter_.update_s);
  const double joules = static_cast<double>(ticks) * counter_.joules_per_tick;
  if (counter_.most_watts > 0 && joules > most_j + 2 * counter_.joules_per_tick) {
    *reason = fmt::format("the counter went from {} to {} in {:.3f} s, which needs more than {} W: it restarted",
                          before, now, silence_s, counter_.most_watts);
    return std::nullopt;
  }
  return static_cast<std::int64_t>(ticks);
}

double CounterChanges::next_from_s() const {
  if (!last_) return -std::numeric_limits<double>::infinity();
  return std::max(last_->time_s - counter_.longest_still_s, edge_ ? edge_->earliest_s : last_->time_s);
}

std::optional<Change> CounterChanges::add(const Sample& sample) {
  if (seen_s_ && !(sample.time_s > *seen_s_))
    throw Error("a sample at {} s follows one at {} s: samples must be in the order of their times", sample.time_s,
                *seen_s_);
  if (sample.ticks && counter_.period > 0 && *sample.ticks >= counter_.period)
    throw Error("the counter reads {}, but begins again after {} ticks", *sample.ticks, counter_.period);
  seen_s_ = sample.time_s;
  if (!sample.ticks) {
    failing_ = last_.has_value();
    return std::nullopt;
  }
  if (!last_) {
    last_ = sample;
    return std::nullopt;
  }
  std::string reason;
  const std::optional<std::int64_t> ticks = increase(sample, &reason);
  const double since_s = last_->time_s, silence_s = sample.time_s - since_s;
  if (ticks && failing_) reason = "samples failed";
  if (ticks && !failing_ && silence_s > counter_.longest_silence_s)
    reason = fmt::format("no sample for {:.1f} s", silence_s);
  failing_ = false;
  last_ = sample;
  total_ticks_ += ticks.value_or(0);
  if (!reason.empty()) {
    gaps_.push_back({since_s, sample.time_s, ticks, reason});
    edge_.reset();
    return std::nullopt;
  }
  if (*ticks == 0) return std::nullopt;
  // The last update came after the sample before this one, and at most update_s ago.
  const double earliest_s = counter_.update_s > 0 ? std::max(since_s, sample.time_s - counter_.update_s) : since_s;
  Change change{edge_, {earliest_s, sample.time_s}, *ticks};
  if (edge_ && sample.time_s - edge_->earliest_s > counter_.longest_still_s) {
    gaps_.push_back({edge_->latest_s, sample.time_s, ticks,
                     fmt::format("the counter stood still for {:.1f} s", sample.time_s - edge_->latest_s)});
    change.from.reset();
  }
  edge_ = change.to;
  return change;
}

}  // namespace molen::ledger
