#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"
#include "policy/step_policy.h"

namespace molen::policy {
namespace {

using History = std::vector<std::pair<Measured, Verdict>>;

// A search down ends where so many settings in turn take more energy than the best.
constexpr int kRises = 2;

double joules_ratio_of(const Measured& m) {
  return m.joules ? m.joules->value : 1.0;
}

// Judges whether a step takes at most `slowdown` longer than at the reference.
Verdict within(const Measured& m, double slowdown) {
  if (m.seconds.high <= 1.0 + slowdown) return Verdict::kGood;
  return m.seconds.low > 1.0 + slowdown ? Verdict::kBad : Verdict::kMore;
}

class MinEnergy : public Strategy {
 public:
  using Strategy::Strategy;
  bool needs_joules() const override { return true; }
  Verdict judge(const Measured& m) const override { return within(m, options().slowdown); }
  std::optional<std::size_t> candidate(const History& measured) const override {
    if (!measured.empty() && measured.back().second == Verdict::kBad) return std::nullopt;  // slower ones are worse
    double best = 1.0;
    int rises = 0;
    for (const auto& [m, verdict] : measured) {
      rises = m.joules && m.joules->low > best ? rises + 1 : 0;
      best = std::min(best, joules_ratio_of(m));
    }
    const std::size_t next = options().reference + measured.size() + 1;
    return rises >= kRises || next >= options().settings.size() ? std::nullopt : std::optional(next);
  }
  std::size_t choose(const History& measured) const override {
    std::size_t best = options().reference;
    double least = 1.0;
    for (const auto& [m, verdict] : measured)
      if (verdict == Verdict::kGood && joules_ratio_of(m) < least) least = joules_ratio_of(m), best = m.setting;
    return best;
  }
  bool better(const Measured& further, const Measured& chosen) const override {
    return judge(further) == Verdict::kGood && joules_ratio_of(further) < joules_ratio_of(chosen);
  }
};

class MinTime : public Strategy {
 public:
  using Strategy::Strategy;
  bool needs_joules() const override { return false; }
  Verdict judge(const Measured& m) const override {
    const double reference = options().settings[options().reference];
    const double needed = options().efficiency * (options().settings[m.setting] - reference) / reference;
    if (1.0 - m.seconds.high >= needed) return Verdict::kGood;
    return 1.0 - m.seconds.low < needed ? Verdict::kBad : Verdict::kMore;
  }
  std::optional<std::size_t> candidate(const History& measured) const override {
    if (!measured.empty() && measured.back().second == Verdict::kBad) return std::nullopt;
    const std::size_t steps = measured.size() + 1;
    return steps > options().reference ? std::nullopt : std::optional(options().reference - steps);
  }
  std::size_t choose(const History& measured) const override {
    std::size_t best = options().reference;
    for (const auto& [m, verdict] : measured)
      if (verdict == Verdict::kGood) best = m.setting;
    return best;
  }
  bool better(const Measured& further, const Measured& chosen) const override {
    return judge(further) == Verdict::kGood && further.seconds.value < chosen.seconds.value;
  }
};

// Climbs as MinTime; where the first step up is not worth it, goes down as MinEnergy.
class MinTimeEnergy : public Strategy {
 public:
  explicit MinTimeEnergy(const StepPolicyOptions& options) : Strategy(options), up_(options), down_(options) {}
  bool needs_joules() const override { return true; }
  Verdict judge(const Measured& m) const override { return of(m.setting).judge(m); }
  std::optional<std::size_t> candidate(const History& measured) const override {
    if (measured.empty()) return up_.candidate(measured);
    const bool climbs = measured.front().second == Verdict::kGood;
    return climbs ? up_.candidate(measured) : down_.candidate({measured.begin() + 1, measured.end()});
  }
  std::size_t choose(const History& measured) const override {
    const bool climbs = !measured.empty() && measured.front().second == Verdict::kGood;
    return climbs || measured.empty() ? up_.choose(measured) : down_.choose({measured.begin() + 1, measured.end()});
  }
  bool better(const Measured& further, const Measured& chosen) const override {
    return of(further.setting).better(further, chosen);
  }

 private:
  const Strategy& of(std::size_t setting) const {
    return setting < options().reference ? static_cast<const Strategy&>(up_) : down_;
  }
  MinTime up_;
  MinEnergy down_;
};

class Sweep : public Strategy {
 public:
  using Strategy::Strategy;
  bool needs_joules() const override {
    return options().selector == Selector::kEnergy || options().selector == Selector::kZeusCost;
  }
  Verdict judge(const Measured& m) const override {
    if (options().selector == Selector::kMaxSlowdown) return within(m, options().slowdown);
    return Verdict::kGood;  // the least number of pairs is enough
  }
  std::optional<std::size_t> candidate(const History& measured) const override {
    const std::size_t next = options().reference + measured.size() + 1;
    return next >= options().settings.size() ? std::nullopt : std::optional(next);
  }
  std::size_t choose(const History& measured) const override {
    if (measured.empty()) return options().reference;
    // Drift moves the step of the reference from one candidate to the next, so all ratios are those to its mean.
    Measured reference{options().reference, {1.0, 1.0, 1.0, 0}, Interval{1.0, 1.0, 1.0, 0}, 0.0, 0.0};
    for (const auto& [m, verdict] : measured) {
      reference.reference_s += m.reference_s / static_cast<double>(measured.size());
      *reference.reference_j += m.reference_j.value_or(0.0) / static_cast<double>(measured.size());
    }
    std::size_t best = options().reference;
    double least = cost(reference, reference);
    for (const auto& [m, verdict] : measured)
      if (const double c = cost(m, reference); c < least) least = c, best = m.setting;
    return best;
  }
  // A sweep has measured all settings.
  bool explores() const override { return false; }
  bool better(const Measured&, const Measured&) const override { return false; }

 private:
  double cost(const Measured& m, const Measured& reference) const {
    const double seconds = reference.reference_s * m.seconds.value;
    const double joules = *reference.reference_j * joules_ratio_of(m);
    switch (options().selector) {
      case Selector::kEnergy:
        return joules;
      case Selector::kTime:
        return seconds;
      case Selector::kZeusCost: {
        const double watts =
            options().most_power ? options().most_power->value : *reference.reference_j / reference.reference_s;
        return options().eta * joules + (1.0 - options().eta) * watts * seconds;
      }
      case Selector::kMaxSlowdown:
        break;
    }
    // The lowest setting that is shown to be within the bound.
    return within(m, options().slowdown) == Verdict::kGood ? -static_cast<double>(m.setting) : 0.0;
  }
};

void require_options(std::string_view name, const StepPolicyOptions& o) {
  require_valid(o.sampling);
  const auto refuse = [&](bool wrong, const std::string& what) {
    if (wrong) throw UsageError("energy policy {}: {}", name, what);
  };
  refuse(o.settings.empty(), "there is no setting to choose");
  for (std::size_t i = 0; i < o.settings.size(); ++i)
    refuse(!(o.settings[i] > 0.0) || !std::isfinite(o.settings[i]) || (i > 0 && o.settings[i] >= o.settings[i - 1]),
           "settings must be positive and descending");
  refuse(o.reference >= o.settings.size(),
         fmt::format("there is no setting {}; the reference is one of {}", o.reference, o.settings.size()));
  refuse(!(o.slowdown >= 0.0 && o.slowdown < 1.0), fmt::format("slowdown must be 0 to 1, is {:g}", o.slowdown));
  refuse(!(o.efficiency > 0.0) || !std::isfinite(o.efficiency),
         fmt::format("efficiency must be above 0, is {:g}", o.efficiency));
  refuse(!(o.eta >= 0.0 && o.eta <= 1.0), fmt::format("eta must be 0 to 1, is {:g}", o.eta));
  refuse(o.most_power && !(o.most_power->value > 0.0), "most_power must be above 0");
  refuse(o.hold_steps < 1, fmt::format("hold_steps must be at least 1, is {}", o.hold_steps));
  refuse((name == "min_time" || name == "min_time_energy") && o.reference == 0,
         "it climbs from the reference, which must lie below the greatest setting");
}

}  // namespace

const std::vector<std::string>& step_policy_names() {
  static const std::vector<std::string> names{"monitor", "min_energy", "min_time", "min_time_energy", "sweep"};
  return names;
}

std::unique_ptr<Strategy> make_strategy(std::string_view name, const StepPolicyOptions& options) {
  require_options(name, options);
  if (name == "min_energy") return std::make_unique<MinEnergy>(options);
  if (name == "min_time") return std::make_unique<MinTime>(options);
  if (name == "min_time_energy") return std::make_unique<MinTimeEnergy>(options);
  if (name == "sweep") return std::make_unique<Sweep>(options);
  throw UsageError("there is no energy policy '{}'{}; policies are {}", name, did_you_mean(name, step_policy_names()),
                   fmt::join(step_policy_names(), ", "));
}

}  // namespace molen::policy
