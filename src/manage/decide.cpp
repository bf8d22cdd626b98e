#include "manage/decide.h"

#include <algorithm>

#include "manage/shares.h"

namespace molen::manage {

PowerDecision decide(const PowerCap& cap, bool was_limiting, const std::vector<NodeNow>& nodes) {
  PowerDecision decision;
  double rest_w = 0;
  std::vector<Demand> demands;
  for (const NodeNow& node : nodes) {
    decision.watts += node.watts();
    rest_w += node.rest_w;
    for (const Device& device : node.devices) {
      demands.push_back({device.least_w, device.most_w, device.wants_w()});
      decision.least_w += device.least_w;
    }
  }
  decision.least_w += rest_w;
  const double lift_w = cap.power.value * (was_limiting ? cap.lift_at : 1.0);
  decision.limiting = cap.kind == PowerCap::Kind::kHard || decision.watts > lift_w;
  if (!decision.limiting) return decision;
  const Shares shares = divide_power(cap.power.value - rest_w, demands);
  decision.met = shares.met;
  decision.bound_w = rest_w;
  std::size_t next = 0;
  for (const NodeNow& node : nodes)
    for (const Device& device : node.devices) {
      const double watts = shares.watts.at(next++);
      decision.bound_w += watts;
      decision.limits[node.name].push_back({device.setting, watts});
    }
  return decision;
}

SiteLimits least_of(const SiteLimits& a, const SiteLimits& b) {
  SiteLimits all = a;
  for (const auto& [node, limits] : b) {
    auto& into = all[node];
    for (const collect::Limit& limit : limits) {
      const auto at =
          std::find_if(into.begin(), into.end(), [&](const auto& known) { return known.setting == limit.setting; });
      if (at == into.end())
        into.push_back(limit);
      else
        at->watts = std::min(at->watts, limit.watts);
    }
  }
  return all;
}

EnergyDecision decide(const EnergyCap& cap, double measured_j, double assumed_j, const std::set<int>& warned) {
  EnergyDecision decision;
  decision.joules = measured_j + assumed_j;
  decision.percent = 100.0 * decision.joules / cap.energy.value;
  for (const int level : cap.warn_at)
    if (decision.percent >= level && !warned.contains(level)) decision.warnings.push_back(level);
  return decision;
}

double joules_of_gaps(const std::vector<ScopeCover>& covers) {
  double joules = 0;
  for (const ScopeCover& cover : covers) {
    if (cover.covered_s <= 0) continue;
    const double gap_s = std::max(0.0, cover.last_s - cover.first_s - cover.covered_s);
    joules += cover.joules / cover.covered_s * gap_s;
  }
  return joules;
}

double assumed_joules(const std::vector<NodeNow>& nodes, double from_s, double now_s) {
  const auto since = [&](double until_s) { return std::max(0.0, now_s - std::max(until_s, from_s)); };
  double joules = 0;
  for (const NodeNow& node : nodes) {
    if (node.how == NodeNow::How::kMeasured) continue;
    double more_w = node.watts();
    // The sum already has the joules that the other scopes of the node have measured since.
    for (const NodeNow::Reading& reading : node.readings) {
      if (reading.old) joules += reading.watts * since(reading.until_s);
      more_w -= reading.watts;
    }
    joules += std::max(0.0, more_w) * since(node.until_s);
  }
  return joules;
}

}  // namespace molen::manage
