#include "manage/nodes.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "energy/scope.h"

namespace molen::manage {
namespace {

// A device that draws so much of its limit may be held back by it.
constexpr double kNearLimit = 0.95;
// Room for a device that its limit does not hold back, so that the next limit does not either.
constexpr double kRoomAbove = 1.1;
// Devices set limits in steps, and orders change a little with each look.
constexpr double kKept = 1.02;

const ScopePower* find_scope(const NodeRecord& record, const std::string& scope) {
  const auto at =
      std::find_if(record.scopes.begin(), record.scopes.end(), [&](const ScopePower& s) { return s.scope == scope; });
  return at == record.scopes.end() ? nullptr : &*at;
}

// Returns whether the node's sum already has the joules of a scope.
bool is_in_sum(const NodeRecord& record, const std::string& scope) {
  return std::any_of(record.scopes.begin(), record.scopes.end(), [&](const ScopePower& s) {
    return s.counted && s.watts && (s.scope == scope || energy::contains(s.scope, scope));
  });
}

bool asks_no_more(const NodeRecord& record, const NodeTimes& times) {
  return times.now_s - record.asked_s > times.stale_after_s;
}

// Returns what the devices of a node may draw beyond its readings where it has ceased to ask for limits: it drew so
// little because of limits that end by themselves. 0 where a reading is of a time without them.
double without_lapsed_w(const NodeRecord& record, const NodeTimes& times, double reading_until_s) {
  if (!record.limitable || !asks_no_more(record, times)) return 0;
  // The reading is of a period that began before its end, and most of it must lie behind the end of the limits.
  if (reading_until_s - times.stale_after_s > record.asked_s + times.hold_s) return 0;
  double more_w = 0;
  std::set<std::string> scopes;
  for (const collect::LimitableSetting& s : record.limitable->settings) {
    if (!scopes.insert(s.scope).second) continue;
    const ScopePower* power = find_scope(record, s.scope);
    const double drawn_w = power != nullptr && power->watts && is_in_sum(record, s.scope) ? *power->watts : 0.0;
    more_w += std::max(0.0, s.most_w - drawn_w);
  }
  return more_w;
}

// Notes the limits that the node does not keep: as it said last, they are above what was ordered last. The difference
// is also there while a new order is under way.
void note_limits_not_kept(const NodeRecord& record, NodeNow& node) {
  for (const collect::Limit& limit : record.ordered)
    for (const Device& device : node.devices)
      if (device.setting == limit.setting && device.present_w && *device.present_w > kKept * limit.watts)
        node.notes.push_back(fmt::format("{} has a limit of {:.0f} W, and {:.0f} W were ordered last", device.scope,
                                         *device.present_w, limit.watts));
}

// Enters the devices whose limits can be set, or why there are none.
void add_devices(const NodeRecord& record, const NodeTimes& times, NodeNow& node) {
  if (!record.limitable) {
    node.without = "it does not ask for limits (molen energy send --obey-limits)";
  } else if (asks_no_more(record, times)) {
    node.without = fmt::format("it has not asked for limits for {:.0f} s", times.now_s - record.asked_s);
  } else if (record.limitable->settings.empty()) {
    node.without =
        record.limitable->problem.empty() ? "it has no power limit that may be set" : record.limitable->problem;
  } else {
    if (!record.limitable->problem.empty()) node.notes.push_back(record.limitable->problem);
    std::set<std::string> scopes;
    for (const collect::LimitableSetting& s : record.limitable->settings) {
      if (!scopes.insert(s.scope).second) continue;  // a second limit of the same device
      const ScopePower* power = find_scope(record, s.scope);
      node.devices.push_back(
          {s.setting, s.scope, s.least_w, s.most_w, s.present_w, power != nullptr ? power->watts : std::nullopt});
      if (!node.devices.back().drawn_w)
        node.notes.push_back(fmt::format("{} has no reading and counts with its limit, {:.0f} W", s.scope,
                                         node.devices.back().counts_w()));
    }
  }
}

}  // namespace

double Device::wants_w() const {
  if (!drawn_w || *drawn_w >= kNearLimit * present_w.value_or(most_w)) return most_w;
  return std::clamp(kRoomAbove * *drawn_w, least_w, most_w);
}

double NodeNow::watts() const {
  double watts = rest_w;
  for (const Device& device : devices) watts += device.counts_w();
  return watts;
}

const char* name_of(NodeNow::How how) {
  if (how == NodeNow::How::kMeasured) return "measured";
  return how == NodeNow::How::kLastKnown ? "last known" : "assumed";
}

NodeNow node_now(const NodeRecord& record, const NodeTimes& times, double node_most_w) {
  NodeNow node;
  node.name = record.name;
  node.notes = record.notes;
  add_devices(record, times, node);
  note_limits_not_kept(record, node);
  double sum_w = 0;
  bool measured = false;
  node.until_s = times.now_s;
  for (const ScopePower& s : record.scopes) {
    if (!s.counted) continue;
    if (!s.watts) {
      const bool limited = std::any_of(node.devices.begin(), node.devices.end(),
                                       [&](const Device& device) { return device.scope == s.scope; });
      if (!limited) node.notes.push_back(fmt::format("{} has no reading and is not in the sum", s.scope));
      continue;
    }
    sum_w += *s.watts;
    node.readings.push_back({*s.watts, s.until_s, times.now_s - s.until_s > times.stale_after_s});
    measured = true;
    node.until_s = std::min(node.until_s, s.until_s);
  }
  if (!measured) {
    node.how = NodeNow::How::kAssumed;
    node.until_s = 0;
    double devices_w = 0;
    for (const Device& device : node.devices) devices_w += device.counts_w();
    node.rest_w = std::max(0.0, node_most_w - devices_w);
    return node;
  }
  if (times.now_s - node.until_s > times.stale_after_s) node.how = NodeNow::How::kLastKnown;
  for (const Device& device : node.devices)
    if (device.drawn_w && is_in_sum(record, device.scope)) sum_w -= *device.drawn_w;
  node.rest_w = std::max(0.0, sum_w);
  if (const double more_w = without_lapsed_w(record, times, node.until_s); more_w > 0) {
    node.rest_w += more_w;
    node.notes.push_back(
        fmt::format("its limits may have ended, so it counts with {:.0f} W more than it drew", more_w));
  }
  return node;
}

}  // namespace molen::manage
