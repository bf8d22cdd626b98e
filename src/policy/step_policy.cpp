#include "policy/step_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace molen::policy {
namespace {

// A policy that needs joules gives up after so many blocks without.
constexpr int kBlocksWithoutJoules = 3;
// Where the reference wins again and again, searches become rarer by so much at most.
constexpr int kMostQuiet = 16;

class Monitor : public StepPolicy {
 public:
  explicit Monitor(std::size_t reference) : reference_(reference) {}
  Decision next(const StepReading&) override { return {reference_, ""}; }
  std::optional<std::size_t> chosen() const override { return reference_; }
  const Savings& savings() const override { return none_; }

 private:
  std::size_t reference_;
  Savings none_;
};

// Measures candidates beside the reference for a strategy, holds what it chooses, and checks that from time to time.
//
//   search -> check -> hold -> check -> further -> hold ...
//               |                 |        (a setting further from the reference, if it is better, is chosen)
//               +-----------------+--> one setting nearer to the reference, where the chosen one is no good any more
class MeasuredPolicy : public StepPolicy {
 public:
  explicit MeasuredPolicy(std::unique_ptr<Strategy> strategy)
      : strategy_(std::move(strategy)),
        options_(strategy_->options()),
        collector_(options_.sampling),
        setting_(options_.reference) {
    begin_search();
    collector_.begin(true);
  }

  Decision next(const StepReading& reading) override {
    std::string news;
    if (phase_ == Phase::kHold) {
      if (--left_ <= 0 && chosen_ != options_.reference) begin_experiment(Phase::kCheck, *chosen_);
      if (left_ <= 0 && chosen_ == options_.reference) begin_search();
    } else {
      if (const auto block = collector_.add(reading)) news = take(*block);
    }
    return {setting_, std::move(news)};
  }
  std::optional<std::size_t> chosen() const override { return chosen_; }
  const Savings& savings() const override { return savings_; }

 private:
  enum class Phase { kSearch, kCheck, kFurther, kHold };

  std::string take(const Block& block) {
    if (strategy_->needs_joules() && !block.joules) {
      if (++without_joules_ < kBlocksWithoutJoules) return collector_.begin(false), "";
      without_joules_ = 0;
      chosen_ = options_.reference;
      hold();
      return fmt::format(
          "it needs the joules of a step, and the meters give none (`molen energy list` says why); the reference "
          "stays, and the search begins again in {} steps",
          left_);
    }
    without_joules_ = 0;
    const bool pair = experiment_->add(block);
    std::string news = pair ? judge() : "";
    if (phase_ == Phase::kSearch || phase_ == Phase::kCheck || phase_ == Phase::kFurther)
      change_to(experiment_->setting());
    return news;
  }

  // Judges the candidate after a pair, and goes on once enough is known.
  std::string judge() {
    const int pairs = static_cast<int>(experiment_->pairs().size());
    if (phase_ == Phase::kCheck) savings_.add(experiment_->pairs().back());
    if (pairs < options_.sampling.least_pairs) return "";
    const Measured m = measured();
    Verdict verdict = strategy_->judge(m);
    if (verdict == Verdict::kMore) {
      if (pairs < options_.sampling.most_pairs) return "";
      // A candidate is not taken on a guess, and one that was taken is not left on a guess.
      verdict = phase_ == Phase::kCheck ? Verdict::kGood : Verdict::kBad;
    }
    switch (phase_) {
      case Phase::kSearch:
        return searched(m, verdict);
      case Phase::kCheck:
        return checked(m, verdict);
      default:
        return went_further(m, verdict);
    }
  }

  std::string searched(const Measured& m, Verdict verdict) {
    history_.emplace_back(m, verdict);
    if (const auto candidate = strategy_->candidate(history_)) {
      begin_experiment(Phase::kSearch, *candidate);
      return "";
    }
    return choose(strategy_->choose(history_), "chosen");
  }

  std::string checked(const Measured& m, Verdict verdict) {
    const bool costs = strategy_->needs_joules() && m.joules && m.joules->low > 1.0 && *chosen_ > options_.reference;
    if (verdict == Verdict::kBad || costs)
      return choose(nearer(*chosen_), costs ? "it now takes more energy than the reference; nearer to it"
                                            : "it is no longer within the bound; nearer to the reference");
    last_check_ = m;
    const std::size_t further = *chosen_ > options_.reference ? *chosen_ + 1 : *chosen_ - 1;
    if (strategy_->explores() && !just_chosen_ && further < options_.settings.size()) {
      begin_experiment(Phase::kFurther, further);
      return "";
    }
    hold();
    return savings_.pairs() > 1 ? savings_.text() : "";
  }

  std::string went_further(const Measured& m, Verdict verdict) {
    if (verdict == Verdict::kGood && strategy_->better(m, last_check_)) return choose(m.setting, "better than before");
    hold();
    return "";
  }

  std::size_t nearer(std::size_t setting) const { return setting > options_.reference ? setting - 1 : setting + 1; }

  // Takes a setting, and measures what it saves, unless it is the reference.
  std::string choose(std::size_t setting, const char* why) {
    chosen_ = setting;
    savings_.clear();
    if (setting == options_.reference) {
      quiet_ = std::min(2 * quiet_, kMostQuiet);
      hold();
      return fmt::format("the reference, {}, stays: {}", options_.name_of(setting), why);
    }
    quiet_ = 1;
    begin_experiment(Phase::kCheck, setting);
    just_chosen_ = true;
    return fmt::format("setting {}: {}", options_.name_of(setting), why);
  }

  void hold() {
    phase_ = Phase::kHold;
    left_ = quiet_ * options_.hold_steps;
    just_chosen_ = false;
    change_to(*chosen_);
  }

  void begin_search() {
    history_.clear();
    if (const auto candidate = strategy_->candidate(history_)) return begin_experiment(Phase::kSearch, *candidate);
    chosen_ = options_.reference;
    hold();
  }

  void begin_experiment(Phase phase, std::size_t candidate) {
    phase_ = phase;
    experiment_.emplace(options_.reference, candidate);
    change_to(experiment_->setting());
  }

  void change_to(std::size_t setting) {
    collector_.begin(setting != setting_);
    setting_ = setting;
  }

  Measured measured() const {
    // Each look at the interval is a chance to err; together they must err no more than the confidence allows.
    const int looks = options_.sampling.most_pairs - options_.sampling.least_pairs + 1;
    const double confidence = 1.0 - (1.0 - options_.sampling.confidence) / looks;
    Measured m;
    m.setting = experiment_->candidate();
    m.seconds = experiment_->seconds_ratio(confidence);
    m.joules = experiment_->joules_ratio(confidence);
    const auto& pairs = experiment_->pairs();
    double joules = 0.0;
    for (const Pair& p : pairs) {
      m.reference_s += p.reference_s / static_cast<double>(pairs.size());
      joules += p.reference_j.value_or(0.0) / static_cast<double>(pairs.size());
    }
    if (m.joules) m.reference_j = joules;
    return m;
  }

  std::unique_ptr<Strategy> strategy_;
  const StepPolicyOptions& options_;
  BlockCollector collector_;
  std::size_t setting_;
  Phase phase_ = Phase::kSearch;
  std::optional<Experiment> experiment_;
  std::vector<std::pair<Measured, Verdict>> history_;
  Measured last_check_;
  std::optional<std::size_t> chosen_;
  Savings savings_;
  int left_ = 0, without_joules_ = 0, quiet_ = 1;  // quiet_: how many times hold_steps a hold takes
  bool just_chosen_ = false;
};

}  // namespace

std::unique_ptr<StepPolicy> make_step_policy(std::string_view name, const StepPolicyOptions& options) {
  if (name == "monitor") {
    (void)make_strategy("sweep", options);  // for its checks
    return std::make_unique<Monitor>(options.reference);
  }
  return std::make_unique<MeasuredPolicy>(make_strategy(name, options));
}

std::string StepPolicyOptions::name_of(std::size_t setting) const {
  return names.empty() ? fmt::format("{:g}", settings.at(setting)) : names.at(setting);
}

}  // namespace molen::policy
