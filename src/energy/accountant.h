// Joules of each step by scope, from the available meters. A scope without a reading in a step is null with its reason;
// it is never 0 and never silently missing from a sum.
#pragma once

#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "energy/meter.h"
#include "energy/power_curve.h"
#include "energy/totals.h"

namespace molen::energy {

struct ScopeEnergy {
  std::optional<double> joules;
  Source source = Source::kNone;  // kNone when there are no joules
  std::string reason;             // the reason for missing joules
  bool unchanged = false;         // why: the counter did not change, so its next change has the joules of this time too
  // The most by which the joules may be off by the resolution of the meters (uncertainty.h); nothing where that is not
  // known.
  std::optional<double> resolution_j = {};
  double seconds = 0;  // between this meter's two readings: meters are read in turn, and some take long
};

struct StepEnergy {
  std::map<std::string, ScopeEnergy> scopes;
  // The sum over the counted scopes that have a meter. It is null when there is no such scope, or when one of them
  // has no reading in this step.
  std::optional<double> total_j;
  std::string total_reason;
  // That of the total. Meters that are read at one time are off together, so theirs add up linearly; nothing where that
  // of one is not known.
  std::optional<double> total_resolution_j;
  // The joules of the counted scopes since the meters were opened, at the step's end, as EnergySoFar::total_j has them.
  std::optional<double> so_far_j;
  // By how much so_far_j rose in this step: 0 where a counter did not change, unlike total_j, so that it can be added
  // up over steps that are shorter than the counters' updates. Null where a counted scope lost energy or has no
  // reading.
  std::optional<double> added_j;
  ModelledJoules modelled;  // of parts without a meter, where energy.model asks for it; in none of the values above

  // Return the maps of metrics.jsonl: the joules, their resolution and the source by scope.
  std::map<std::string, std::optional<double>> joules() const;
  std::map<std::string, std::optional<double>> resolutions() const;
  std::map<std::string, std::string> sources() const;
};

// A reading of a counter at a time of the accountant's clock; null if it failed.
struct Sample {
  double time_s = 0;
  std::optional<Reading> reading;
};

class Accountant {
 public:
  // Starts a thread when a meter must be read more often than steps end (a counter that wraps, power that is
  // integrated), and when `sample_every` is above 0: it then reads every meter as often, and keeps the samples of
  // counters. `clock` gives the times of samples; by default it is that of base/clock.h.
  explicit Accountant(Meters meters, Seconds sample_every = Seconds(0), std::function<double()> clock = {});
  ~Accountant();
  Accountant(const Accountant&) = delete;
  Accountant& operator=(const Accountant&) = delete;

  void begin_step();
  // Returns the joules since begin_step (or since the last end_step, if that was later). A counter that did not change
  // within the step gives null and not 0 J, because the step may be shorter than the counter's update period (about 1
  // ms for RAPL, 100 ms for NVML).
  StepEnergy end_step();
  // Returns the joules since construction. Exact even when single steps are too short for a counter.
  StepEnergy since_start();
  // Returns the joules since construction as well, but keeps partial ones: each meter counts from its first good
  // reading to its last one, and scopes that lack a part are named. The caller fills in `seconds`.
  EnergySoFar so_far();

  // Returns the samples of each meter since the last call, in the order of their times, which increase. The thread
  // takes them; the construction and `so_far` take one more, so that samples and joules end at the same reading. None
  // are kept unless counters are sampled.
  std::vector<std::vector<Sample>> take_samples();

  // From now on, calls `sink` at once and after each reading, by the thread or by a function of this class. `joules`:
  // of each meter since construction; a meter without a good reading yet has NaN, and one whose reading fails keeps the
  // value before. `counted`: their sum over the counted scopes. `sink` must be quick: readings wait for it.
  using Sink = std::function<void(std::span<const double> joules, double counted)>;
  void on_reading(Sink sink);

  // Returns {"available": {scope: "meter: detail"}, "unavailable": {"meter scope": reason}}, for the run's events.
  Json describe() const;
  const Meters& meters() const { return meters_; }

 private:
  struct Snapshot {
    std::vector<Result<Reading>> readings;
    std::vector<double> times_s;  // of each meter: when its counter was read, on `clock_`
    double time_s = 0;            // before the first of them
  };
  enum class For { kStep, kSamples };
  Snapshot snapshot(For what);
  StepEnergy between(const Snapshot& a, const Snapshot& b) const;
  static ScopeEnergy between(const MeterInfo& info, const Result<Reading>& a, const Result<Reading>& b, double seconds);
  std::optional<double> counted_so_far() const;
  // Returns whether each counted scope has a reading, be it that its counter did not change.
  bool reads_all_counted(const StepEnergy& step) const;
  void keep_reading(double every_s);
  Result<Reading> sample(std::size_t meter);  // reads and keeps the reading
  bool is_sampled(std::size_t meter) const;
  bool is_read_by_thread(std::size_t meter) const;
  void tell_sink();

  struct Span {
    std::optional<Reading> first, last;
    double first_s = 0, last_s = 0;  // their times, on `clock_`
    bool late = false;               // the first reading failed
    bool failing = false;            // the last reading failed
  };
  Meters meters_;
  bool samples_;
  std::function<double()> clock_;
  struct Sampled {
    std::vector<Sample> samples;
    double last_s = -std::numeric_limits<double>::infinity();
  };
  std::vector<Sampled> sampled_;  // by meter
  std::mutex mutex_;
  Snapshot begin_, start_;
  double begin_j_ = 0.0;               // counted_so_far at `begin_`
  std::vector<Span> spans_;            // by meter
  std::vector<double> since_start_j_;  // by meter, for the sink
  Sink sink_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread reader_;
};

}  // namespace molen::energy
