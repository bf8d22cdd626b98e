// A budget of energy or emissions for a whole run: what the run will have consumed at its end, by what its steps,
// checkpoints and validations took as they were measured, and the last step that a budget pays for. All functions are
// pure and deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

namespace molen::policy {

// The energy and time of one step, checkpoint or validation.
struct Use {
  double joules = 0.0, seconds = 0.0;
};

// The energy and time of a step, by the last steps that were measured. These are divided into blocks of equal length,
// and the variances are those of the blocks' means (batch means: Law and Carson, Operations Research 27, 1979). So they
// are right where neighbouring steps are correlated, as they are if a counter changes less often than steps end.
struct StepUse {
  Use mean;
  double mean_variance = 0.0;  // J^2: of `mean` as an estimate
  double step_variance = 0.0;  // J^2: the part that each further step adds to the variance of a sum
  int degrees = 1;             // of freedom of the two
};

class RecentSteps {
 public:
  void add(const Use& step);
  // Returns nothing until kLeastSteps steps and kLeastSeconds were added, because a counter changes a few times a
  // second.
  std::optional<StepUse> use() const;

  static constexpr int kBlocks = 10;
  static constexpr std::size_t kLeastSteps = 2 * kBlocks;
  static constexpr double kLeastSeconds = 0.5;
  // Older steps are dropped once the others are so many and took so long.
  static constexpr std::size_t kSteps = 100;
  static constexpr double kSeconds = 10.0;

 private:
  std::deque<Use> steps_;
  double seconds_ = 0.0;
};

struct RunCosts {
  StepUse step;
  // The greatest that was measured. Absent: none was, and forecasts count them as nothing.
  std::optional<Use> save, validation;
};

// Where a run is, and when it saves and validates. The last step is always followed by both.
struct RunAhead {
  std::int64_t step = 0;  // that are done
  // The checkpoint and the validation that may be due after `step` are still to come.
  bool pending = false;
  std::int64_t save_every = 0;  // steps; 0: every `save_every_s` seconds
  double save_every_s = 0.0;
  std::int64_t validate_every = 0;  // steps; 0: the run does not validate
};

// A value with the bounds between which it lies with this probability.
inline constexpr double kRangeConfidence = 0.95;
struct Range {
  double value = 0.0, low = 0.0, high = 0.0;
  bool operator==(const Range&) const = default;
};

struct Ahead {
  Range joules;
  double seconds = 0.0;
};
// Returns what a run takes from where it is until it ends after step `last` (at least ahead.step). The bounds follow
// from the spread of steps; those of checkpoints and validations are taken as measured. Value and upper bound never
// fall as `last` grows.
Ahead needed(const RunCosts& costs, const RunAhead& ahead, std::int64_t last);

// Returns the kg CO2e of joules that are consumed evenly over so many seconds from now on.
using Emissions = std::function<double(double joules, double seconds)>;

// The parts of a run's budgets that are not used yet. A budget that is not set is absent.
struct Left {
  std::optional<double> joules, kg;
};

// Returns whether a run that ends after step `last` takes more than what is left even by the lower bound of its need.
bool surely_exceeds(const Left& left, const RunCosts& costs, const RunAhead& ahead, std::int64_t last,
                    const Emissions& emissions = {});

enum class Bound { kValue, kHigh };
// Returns the last step, from ahead.step to `last`, after which the run can end within what is left, by the expected
// need or by its upper bound. Returns ahead.step also where not even ending now is paid for. `emissions` is needed
// where left.kg is there, and must grow with its arguments.
std::int64_t last_paid(const Left& left, const RunCosts& costs, const RunAhead& ahead, std::int64_t last, Bound bound,
                       const Emissions& emissions = {});

}  // namespace molen::policy
