#include "policy/step_policy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "policy/test_step_machine.h"

namespace molen::policy {
namespace {

StepPolicyOptions options_of(const StepMachine& machine, std::size_t reference = 0) {
  StepPolicyOptions options;
  options.settings = machine.settings;
  options.reference = reference;
  return options;
}

// Returns the least joules of a step within a slowdown beside the reference.
double least_joules(const StepMachine& machine, std::size_t reference, double slowdown) {
  double least = machine.joules(reference);
  for (std::size_t i = reference; i < machine.settings.size(); ++i)
    if (machine.slowdown(i, reference) <= slowdown) least = std::min(least, machine.joules(i));
  return least;
}

TEST(StepPolicy, MonitorChangesNothing) {
  const StepMachine machine;
  const auto policy = make_step_policy("monitor", options_of(machine));
  const Course course = run_policy(*policy, machine, 0, 500);
  EXPECT_EQ(std::count(course.settings.begin(), course.settings.end(), 0u), 500);
  EXPECT_EQ(policy->savings().text(), "no savings are claimed: fewer than two pairs were measured");
}

// Over many machines and seeds: the choice is within the bound, and nearly as good as the best within it.
TEST(MinEnergy, IsWithinTheBoundAndNearTheBest) {
  int beyond = 0, cases = 0, far = 0;
  for (const double share : {0.1, 0.4, 0.8, 1.0})
    for (const double slowdown : {0.02, 0.05, 0.1})
      for (std::uint64_t seed = 0; seed < 25; ++seed) {
        StepMachine machine;
        machine.share = share;
        machine.seed = seed;
        auto options = options_of(machine);
        options.slowdown = slowdown;
        const auto policy = make_step_policy("min_energy", options);
        run_policy(*policy, machine, 0, 2500);
        ASSERT_TRUE(policy->chosen());
        ++cases;
        beyond += machine.slowdown(*policy->chosen()) > slowdown + 1e-9 ? 1 : 0;
        far += machine.joules(*policy->chosen()) > 1.02 * least_joules(machine, 0, slowdown) ? 1 : 0;
      }
  EXPECT_LE(beyond, cases / 20);
  EXPECT_LE(far, cases / 10);
}

RC_GTEST_PROP(MinEnergy, HoldsTheBoundOnAnyMachine, ()) {
  StepMachine machine;
  machine.share = 0.01 * *rc::gen::inRange(0, 101);
  machine.idle_w = *rc::gen::inRange(20, 400);
  machine.noise = 0.001 * *rc::gen::inRange(0, 10);
  machine.drift = 0.01 * *rc::gen::inRange(0, 10);
  machine.step_s = 0.01 * *rc::gen::inRange(5, 300);
  machine.seed = *rc::gen::inRange<std::uint64_t>(0, 1 << 20);
  auto options = options_of(machine);
  options.slowdown = 0.01 * *rc::gen::inRange(0, 20);
  const auto policy = make_step_policy("min_energy", options);
  run_policy(*policy, machine, 0, 4000);
  if (policy->chosen()) {
    // One look in twenty may err, by little.
    RC_ASSERT(machine.slowdown(*policy->chosen()) <= options.slowdown + 0.01);
    RC_ASSERT(machine.joules(*policy->chosen()) <= 1.01 * machine.joules(0));
  }
}

// EAR takes the present signature as if it were that of the default clock (its issue 5), so each of its decisions
// allows the penalty anew. Measured beside the reference, the penalty does not compound.
TEST(MinEnergy, ThePenaltyDoesNotCompound) {
  StepMachine machine;
  machine.share = 0.3;
  const double limit = 0.05;
  std::size_t present = 0;
  for (int decision = 0; decision < 10; ++decision) {
    std::size_t best = present;
    for (std::size_t i = present; i < machine.settings.size(); ++i)
      if (machine.seconds(i) < machine.seconds(present) * (1.0 + limit) && machine.joules(i) < machine.joules(best))
        best = i;
    present = best;
  }
  ASSERT_GT(machine.slowdown(present), 4 * limit) << "the machine shows the defect";

  auto options = options_of(machine);
  options.slowdown = limit;
  options.hold_steps = 100;  // many decisions
  const auto policy = make_step_policy("min_energy", options);
  const Course course = run_policy(*policy, machine, 0, 20000);
  EXPECT_LE(machine.slowdown(*policy->chosen()), limit);
  EXPECT_LE(course.seconds, (1.0 + limit) * 20000 * machine.seconds(0));
}

// EAR cannot climb back either. Here the work changes to one that follows the clock.
TEST(MinEnergy, ClimbsBackWhenTheWorkChanges) {
  StepMachine machine, later;
  machine.share = 0.1;
  later.share = 1.0;
  auto options = options_of(machine);
  options.slowdown = 0.06;
  options.hold_steps = 200;
  const auto policy = make_step_policy("min_energy", options);
  run_policy(*policy, machine, 0, 3000);
  ASSERT_TRUE(policy->chosen());
  EXPECT_GT(later.slowdown(*policy->chosen()), 0.2);
  std::size_t setting = *policy->chosen();
  for (std::uint64_t n = 3000; n < 9000; ++n) setting = policy->next(later.run(setting, n)).setting;
  EXPECT_LE(later.slowdown(*policy->chosen()), 0.06);
  // The claim is of the present choice, without the pairs of those before it.
  const auto saved = policy->savings().seconds();
  EXPECT_EQ(saved.has_value(), *policy->chosen() != 0);
  if (saved) EXPECT_NEAR(-saved->value / later.seconds(0), later.slowdown(*policy->chosen()), 0.01);
  for (std::uint64_t n = 9000; n < 20000; ++n) setting = policy->next(machine.run(setting, n)).setting;
  EXPECT_LE(machine.joules(*policy->chosen()), 1.03 * least_joules(machine, 0, 0.06)) << "and goes down again";
}

TEST(MinEnergy, WithoutJoulesItStaysAndSaysSo) {
  const StepMachine machine;
  const auto policy = make_step_policy("min_energy", options_of(machine));
  std::string news;
  std::size_t setting = 0;
  for (std::uint64_t n = 0; n < 300; ++n) {
    StepReading reading = machine.run(setting, n);
    reading.joules.reset();
    const Decision decision = policy->next(reading);
    news += decision.news;
    setting = decision.setting;
  }
  EXPECT_EQ(setting, 0u);
  EXPECT_EQ(
      news,
      "it needs the joules of a step, and the meters give none (`molen energy list` says why); the reference stays, "
      "and the search begins again in 1000 steps");
}

TEST(MinTime, ClimbsAsLongAsTheClockPays) {
  for (const double share : {0.0, 0.5, 0.9, 1.0})
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      StepMachine machine;
      machine.share = share;
      machine.seed = seed;
      const std::size_t reference = 6;
      const auto policy = make_step_policy("min_time", options_of(machine, reference));
      run_policy(*policy, machine, reference, 3000);
      // EAR's rule with the true times, from the reference up.
      std::size_t best = reference;
      for (std::size_t i = reference; i-- > 0;) {
        const double gain = 1.0 - machine.seconds(i) / machine.seconds(reference);
        if (gain < 0.7 * (machine.settings[i] / machine.settings[reference] - 1.0)) break;
        best = i;
      }
      ASSERT_TRUE(policy->chosen());
      // A setting whose gain lies within the noise of what is needed is not taken.
      EXPECT_GE(*policy->chosen(), best) << share << ' ' << seed;
      EXPECT_LE(*policy->chosen(), best + 1) << share << ' ' << seed;
    }
}

TEST(MinTimeEnergy, GoesUpOrDown) {
  StepMachine computes, waits;
  computes.share = 1.0;
  waits.share = 0.05;
  auto options = options_of(computes, 6);
  const auto up = make_step_policy("min_time_energy", options);
  run_policy(*up, computes, 6, 3000);
  EXPECT_LT(*up->chosen(), 6u);
  const auto down = make_step_policy("min_time_energy", options);
  run_policy(*down, waits, 6, 3000);
  EXPECT_GE(*down->chosen(), 6u);
  EXPECT_LE(waits.joules(*down->chosen()), 1.02 * least_joules(waits, 6, 0.05));
}

// Up from the reference, faster is better; down from it, fewer joules.
TEST(MinTimeEnergy, GoesFurtherWhereThatIsBetter) {
  const auto strategy = make_strategy("min_time_energy", options_of(StepMachine{}, 6));
  const auto measured = [](std::size_t setting, double seconds, double joules) {
    Measured m;
    m.setting = setting;
    m.seconds = {seconds, seconds - 0.01, seconds + 0.01, 4};
    m.joules = Interval{joules, joules - 0.01, joules + 0.01, 4};
    return m;
  };
  const Measured up = measured(4, 0.8, 1.1), further_up = measured(3, 0.7, 1.2), slower_up = measured(3, 0.82, 0.5);
  EXPECT_TRUE(strategy->better(further_up, up));
  EXPECT_FALSE(strategy->better(slower_up, up));
  const Measured down = measured(7, 1.01, 0.9), further_down = measured(8, 1.02, 0.8), worse = measured(8, 1.0, 0.95);
  EXPECT_TRUE(strategy->better(further_down, down));
  EXPECT_FALSE(strategy->better(worse, down));
}

TEST(Sweep, EachSelectorTakesItsBest) {
  StepMachine machine;
  machine.share = 0.4;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    machine.seed = seed;
    const auto chosen = [&](Selector selector, double eta = 0.5) {
      auto options = options_of(machine);
      options.selector = selector;
      options.eta = eta;
      options.slowdown = 0.1;
      options.most_power = Watts(500);
      const auto policy = make_step_policy("sweep", options);
      run_policy(*policy, machine, 0, 3000);
      return *policy->chosen();
    };
    const auto least = [&](const std::function<double(std::size_t)>& cost) {
      double best = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < machine.settings.size(); ++i) best = std::min(best, cost(i));
      return best;
    };
    const auto joules = [&](std::size_t i) { return machine.joules(i); };
    const auto zeus = [&](std::size_t i) { return 0.5 * machine.joules(i) + 0.5 * 500 * machine.seconds(i); };
    EXPECT_LE(joules(chosen(Selector::kEnergy)), 1.01 * least(joules)) << seed;
    EXPECT_EQ(chosen(Selector::kTime), 0u) << seed;
    EXPECT_LE(zeus(chosen(Selector::kZeusCost)), 1.01 * least(zeus)) << seed;
    EXPECT_EQ(chosen(Selector::kZeusCost, 0.0), 0u) << "time alone " << seed;
    const std::size_t slowest = chosen(Selector::kMaxSlowdown);
    EXPECT_LE(machine.slowdown(slowest), 0.1 + 1e-9) << seed;
    EXPECT_GT(machine.slowdown(slowest + 2), 0.1) << seed;
  }
}

// The intervals of what is claimed hold the true savings.
TEST(Savings, AreThoseOfTheMachine) {
  int joules_in = 0, seconds_in = 0, claims = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    StepMachine machine;
    machine.share = 0.3;
    machine.seed = seed;
    machine.drift = 0.01;
    auto options = options_of(machine);
    options.hold_steps = 150;
    const auto policy = make_step_policy("min_energy", options);
    run_policy(*policy, machine, 0, 3000);
    const auto joules = policy->savings().joules(), seconds = policy->savings().seconds();
    if (!joules || !seconds) continue;
    ++claims;
    const std::size_t c = *policy->chosen();
    const double true_j = machine.joules(0) - machine.joules(c), true_s = machine.seconds(0) - machine.seconds(c);
    joules_in += joules->low <= true_j && true_j <= joules->high ? 1 : 0;
    seconds_in += seconds->low <= true_s && true_s <= seconds->high ? 1 : 0;
  }
  ASSERT_GT(claims, 150);
  // The machine's slow wave moves all steps by up to 0.2 %, which is in the truth of no interval.
  EXPECT_GE(joules_in, 0.9 * claims);
  EXPECT_GE(seconds_in, 0.9 * claims);
  Savings savings;
  savings.add({1.0, 1.02, 500.0, 450.0});
  savings.add({1.0, 1.04, 500.0, 440.0});
  EXPECT_EQ(
      savings.text(),
      "saves 55 J a step (-8.531 to 118.5 J with 95 % confidence; 11.00 %), which takes 0.03 s longer (-0.0971 to "
      "0.157 s; 3.00 %), by 2 pairs");
  savings.add({1.0, 1.04, std::nullopt, 440.0});
  EXPECT_EQ(savings.text(), "no savings are claimed: steps have no joules");
}

TEST(StepPolicy, TheSameReadingsGiveTheSameDecisions) {
  StepMachine machine;
  const auto a = make_step_policy("min_energy", options_of(machine)),
             b = make_step_policy("min_energy", options_of(machine));
  std::size_t setting = 0;
  for (std::uint64_t n = 0; n < 3000; ++n) {
    const StepReading reading = machine.run(setting, n);
    const Decision decision = a->next(reading), other = b->next(reading);
    ASSERT_EQ(decision.setting, other.setting) << n;
    ASSERT_EQ(decision.news, other.news) << n;
    setting = decision.setting;
  }
}

TEST(StepPolicy, HostileReadingsChangeNothing) {
  StepMachine machine;
  const auto policy = make_step_policy("min_energy", options_of(machine));
  const double nan = std::nan("");
  for (int i = 0; i < 1000; ++i)
    for (const double s : {nan, -1.0, 0.0, std::numeric_limits<double>::infinity()})
      EXPECT_EQ(policy->next({Seconds(s), Joules(nan)}).setting, 0u);
  EXPECT_FALSE(policy->chosen());
}

TEST(StepPolicy, RefusesWhatMakesNoSense) {
  const StepMachine machine;
  const auto why = [&](const char* name, const std::function<void(StepPolicyOptions&)>& change) -> std::string {
    auto options = options_of(machine);
    change(options);
    try {
      make_step_policy(name, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(why("min_energy", [](auto&) {}), "");
  EXPECT_EQ(why("min_enrgy", [](auto&) {}),
            "there is no energy policy 'min_enrgy'; did you mean 'min_energy'?; policies are monitor, min_energy, "
            "min_time, min_time_energy, sweep");
  EXPECT_EQ(why("min_time", [](auto&) {}),
            "energy policy min_time: it climbs from the reference, which must lie below the greatest setting");
  EXPECT_EQ(why("min_energy", [](auto& o) { o.slowdown = -0.1; }),
            "energy policy min_energy: slowdown must be 0 to 1, is -0.1");
  EXPECT_EQ(why("monitor", [](auto& o) { o.settings.clear(); }), "energy policy sweep: there is no setting to choose");
  EXPECT_EQ(why("sweep",
                [](auto& o) {
                  o.settings = {1.0, 2.0};
                }),
            "energy policy sweep: settings must be positive and descending");
  EXPECT_EQ(why("sweep", [](auto& o) { o.reference = 99; }),
            "energy policy sweep: there is no setting 99; the reference is one of 11");
  EXPECT_EQ(why("sweep", [](auto& o) { o.eta = std::nan(""); }), "energy policy sweep: eta must be 0 to 1, is nan");
  EXPECT_EQ(why("sweep", [](auto& o) { o.hold_steps = 0; }),
            "energy policy sweep: hold_steps must be at least 1, is 0");
  EXPECT_EQ(why("sweep", [](auto& o) { o.most_power = Watts(0); }), "energy policy sweep: most_power must be above 0");
  EXPECT_EQ(why("min_time", [](auto& o) { o.reference = 3, o.efficiency = 0; }),
            "energy policy min_time: efficiency must be above 0, is 0");
  EXPECT_EQ(why("sweep", [](auto& o) { o.sampling.least_pairs = 1; }), "energy policy: least_pairs must be at least 2");
  EXPECT_EQ(why("sweep", [](auto& o) { o.sampling.most_pairs = 3; }),
            "energy policy: most_pairs must be at least least_pairs");
  EXPECT_EQ(why("sweep", [](auto& o) { o.sampling.confidence = 1.0; }),
            "energy policy: confidence must be between 0.5 and 1");
}

}  // namespace
}  // namespace molen::policy
