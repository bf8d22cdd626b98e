#include "policy/clock_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::policy {
namespace {

constexpr int kMostClocks = 1000;  // each task has as many choices

void require_figures(const cluster::Cluster& c) {
  std::vector<std::string> missing;
  for (const auto& [key, figure] : {std::pair("low_hz", &c.clocks.low), std::pair("high_hz", &c.clocks.high),
                                    std::pair("step_hz", &c.clocks.step), std::pair("knee_hz", &c.clocks.knee),
                                    std::pair("exponent", &c.clocks.exponent), std::pair("share", &c.clocks.share)})
    if (!figure->has_value()) missing.push_back(fmt::format("clocks.{}", key));
  if (!missing.empty())
    throw UsageError(
        "{}: the description of {} lacks {}; add it to a copy of the description, with its source "
        "(docs/formats/cluster.md, [clocks])",
        c.name, c.device.name, fmt::join(missing, ", "));
}

std::string with_source(const std::string& name, const std::string& value, const cluster::Figure& figure) {
  return fmt::format("{}: {} ({})", name, value, figure.source);
}

}  // namespace

ClockModel::ClockModel(const cluster::Cluster& cluster, const PowerShares& shares)
    : device_(cluster.device), shares_(shares) {
  require_figures(cluster);
  const cluster::Clocks& c = cluster.clocks;
  high_hz_ = c.high->value, knee_hz_ = c.knee->value, exponent_ = c.exponent->value, share_ = c.share->value;
  const double low = c.low->value, step = c.step->value;
  const double steps = std::floor((high_hz_ - low) / step * (1.0 + 1e-12));
  if (steps >= kMostClocks)
    throw UsageError(
        "{}: {:.0f} clocks from clocks.low_hz to clocks.high_hz; at most {} can be planned, so "
        "clocks.step_hz must be larger",
        cluster.name, steps + 1.0, kMostClocks);
  for (int i = 0; i <= static_cast<int>(steps); ++i) clocks_hz_.push_back(high_hz_ - i * step);
  const auto megahertz = [](double hz) { return fmt::format("{:.0f} MHz", hz * 1e-6); };
  assumptions_ = {
      with_source("clocks of a device",
                  fmt::format("{} to {} in steps of {}", megahertz(low), megahertz(high_hz_), megahertz(step)),
                  *c.high),
      with_source("compute time that follows the clock", fmt::format("{:.0f} %", 100.0 * share_), *c.share),
      with_source("clock below which the voltage does not fall", megahertz(knee_hz_), *c.knee),
      with_source("exponent of the power above it, beyond the clock's own", fmt::format("{:.2f}", exponent_),
                  *c.exponent),
      with_source("power of an idle device", fmt::format("{:.0f} W", device_.idle_power.value), device_.idle_power),
      with_source("largest power of a device", fmt::format("{:.0f} W", device_.peak_power.value), device_.peak_power),
      fmt::format("assumption: at the highest clock a device takes {:.0f} W in products, {:.0f} W in ops that move "
                  "memory and {:.0f} W while it waits or communicates (src/sim/factors.json)",
                  watts(Load::kProducts, high_hz_).value, watts(Load::kMemory, high_hz_).value,
                  watts(Load::kWaiting, high_hz_).value),
      "assumption: waiting and communication take the same time and power at all clocks",
      "assumption: without a plan, devices compute at their highest clock, and no power limit lowers it",
  };
}

double ClockModel::rise(double clock_hz) const {
  return clock_hz * std::pow(std::max(1.0, clock_hz / knee_hz_), exponent_);
}

double ClockModel::stretch(Load load, double clock_hz) const {
  return load == Load::kWaiting ? 1.0 : share_ * high_hz_ / clock_hz + 1.0 - share_;
}

Watts ClockModel::watts(Load load, double clock_hz) const {
  const double idle = device_.idle_power.value, range = device_.peak_power.value - idle;
  if (load == Load::kWaiting) return Watts(idle + range * shares_.waiting);
  const double activity = load == Load::kProducts ? shares_.products : shares_.memory;
  return Watts(idle + range * activity * rise(clock_hz) / rise(high_hz_));
}

}  // namespace molen::policy
