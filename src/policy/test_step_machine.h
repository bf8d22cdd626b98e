// A machine with known time and power at each setting, with noise, drift and steps that stall.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/rng.h"
#include "policy/step_policy.h"

namespace molen::policy {

struct StepMachine {
  std::vector<double> settings{2.0e9, 1.9e9, 1.8e9, 1.7e9, 1.6e9, 1.5e9, 1.4e9, 1.3e9, 1.2e9, 1.1e9, 1.0e9};
  double step_s = 0.5;  // at the highest setting
  double share = 0.5;   // of the time that follows the clock
  double idle_w = 100, peak_w = 500;
  double noise = 0.004;  // standard deviation of a step's time and of its power, as a share
  double drift = 0.05;   // of the time, which falls off over 400 steps, and as much of a wave of 300 steps
  double stalls = 0.01;  // share of steps that take three times as long
  std::uint64_t seed = 1;

  double seconds(std::size_t setting) const { return step_s * (share * settings[0] / settings[setting] + 1.0 - share); }
  double watts(std::size_t setting) const {
    const double f = settings[setting] / settings[0];
    return idle_w + (peak_w - idle_w) * f * std::pow(std::max(1.0, f / 0.65), 2.0) / std::pow(1.0 / 0.65, 2.0);
  }
  double joules(std::size_t setting) const { return seconds(setting) * watts(setting); }
  double slowdown(std::size_t setting, std::size_t reference = 0) const {
    return seconds(setting) / seconds(reference) - 1.0;
  }
  // Runs step `n` at a setting.
  StepReading run(std::size_t setting, std::uint64_t n) const {
    const auto x = static_cast<double>(n);
    const double drifted =
        1.0 + drift * std::exp(-x / 400.0) + 0.2 * drift * std::sin(2.0 * std::numbers::pi * x / 300.0);
    double s = seconds(setting) * drifted * std::exp(noise * normal_at(stream_key(seed, "time"), n));
    double w = watts(setting) * std::exp(noise * normal_at(stream_key(seed, "power"), n));
    if (uniform_at(stream_key(seed, "stall"), n) < stalls) s *= 3.0, w = idle_w;
    return {Seconds(s), Joules(s * w)};
  }
};

// The settings that a policy chose on a machine.
struct Course {
  std::vector<std::size_t> settings;  // of each step
  double seconds = 0.0;               // by the machine without noise
};
inline Course run_policy(StepPolicy& policy, const StepMachine& machine, std::size_t reference, int steps) {
  Course course;
  std::size_t setting = reference;
  for (int n = 0; n < steps; ++n) {
    course.settings.push_back(setting);
    course.seconds += machine.seconds(setting);
    setting = policy.next(machine.run(setting, static_cast<std::uint64_t>(n))).setting;
  }
  return course;
}

}  // namespace molen::policy
