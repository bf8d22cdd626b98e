// Comparisons of two settings by blocks of steps in the order A B B A, so that a drift of the machine that is linear
// over the four blocks cancels. All functions are pure and deterministic: ranks that get the same readings decide the
// same.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace molen::policy {

// One step as it was measured, over all ranks and counted scopes.
struct StepReading {
  Seconds seconds{0.0};
  std::optional<Joules> joules;  // absent: no reading, with which no energy is compared
};

struct SamplingOptions {
  int settle_steps = 1;       // not counted after a change of the setting, nor at the beginning of a run
  Seconds settle_time{0.25};  // not counted either: more than a device's latency and a counter's update
  int block_steps = 3;        // least steps of a block
  Seconds block_time{1.0};    // least time of a block; ten or more changes of the energy counter
  int least_pairs = 4, most_pairs = 12;
  double confidence = 0.95;  // of a decision, over all looks at its interval
};
// Throws UsageError that names the option for values that make no sense.
void require_valid(const SamplingOptions& options);

// The mean step of a block of steps at one setting.
struct Block {
  int steps = 0;  // that were kept
  double seconds = 0.0;
  std::optional<double> joules;  // absent where a kept step has no reading, or no counter changed
};

// Collects the steps of one block. Steps that take far longer or shorter than the block's median (a checkpoint, a
// stall) are left out, with their joules.
class BlockCollector {
 public:
  explicit BlockCollector(const SamplingOptions& options) : options_(options) {}
  // Begins a block; `changed`: the setting was changed, or a run begins, so that the first steps are not counted.
  void begin(bool changed);
  // Takes a step; returns the block once it is complete.
  std::optional<Block> add(const StepReading& reading);

 private:
  SamplingOptions options_;
  int skipped_ = 0;
  double skipped_s_ = 0.0;
  double seconds_ = 0.0;
  std::vector<StepReading> steps_;
};

// An estimate with the interval in which the true value lies with the wanted confidence.
struct Interval {
  double value = 0.0, low = 0.0, high = 0.0;
  int pairs = 0;
};
// Returns the quantile of Student's t with `degrees` (at least 1) degrees of freedom; p between 0 and 1.
double student_quantile(double p, int degrees);
// Returns the mean of at least 2 values with its two-sided interval; infinite bounds for fewer.
Interval mean_interval(const std::vector<double>& values, double confidence);

// Two blocks of each setting, which were measured in turn.
struct Pair {
  double reference_s = 0.0, candidate_s = 0.0;     // of a step
  std::optional<double> reference_j, candidate_j;  // of a step
};

// Measures one candidate beside the reference.
class Experiment {
 public:
  Experiment(std::size_t reference, std::size_t candidate) : reference_(reference), candidate_(candidate) {}
  std::size_t candidate() const { return candidate_; }
  // Returns the setting of the next block.
  std::size_t setting() const { return blocks_.size() == 1 || blocks_.size() == 2 ? candidate_ : reference_; }
  // Takes the block that was measured at `setting()`; returns whether a pair is complete by it.
  bool add(const Block& block);
  const std::vector<Pair>& pairs() const { return pairs_; }
  // Return the ratio of the candidate to the reference. That of joules is absent while a pair has no joules.
  Interval seconds_ratio(double confidence) const;
  std::optional<Interval> joules_ratio(double confidence) const;

 private:
  std::size_t reference_, candidate_;
  std::vector<Block> blocks_;
  std::vector<Pair> pairs_;
};

// The joules and seconds that a setting saves in a step beside the reference, by pairs that were measured after the
// setting was chosen: the pairs of the search would flatter it. It is the only source of savings that molen claims.
class Savings {
 public:
  void add(const Pair& pair) { pairs_.push_back(pair); }
  void clear() { pairs_.clear(); }
  int pairs() const { return static_cast<int>(pairs_.size()); }
  // Return the joules and seconds that a step takes less (negative: more), with their intervals. Absent with fewer than
  // two pairs, or where a pair has no joules.
  std::optional<Interval> joules(double confidence = 0.95) const;
  std::optional<Interval> seconds(double confidence = 0.95) const;
  // Returns a sentence such as "saves 812 J a step (776 to 848 J with 95 % confidence, 12.1 %), which takes 0.02 s
  // longer (...), by 8 pairs".
  std::string text(double confidence = 0.95) const;

 private:
  std::vector<Pair> pairs_;
};

}  // namespace molen::policy
