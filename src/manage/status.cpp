#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/units.h"
#include "base/utf8.h"
#include "manage/manager.h"

namespace molen::manage {
namespace {

constexpr double kJoulesOfKwh = 3.6e6;

double limit_of(const SiteLimits& limits, const NodeNow& node) {
  const auto at = limits.find(node.name);
  double watts = 0;
  if (at != limits.end())
    for (const collect::Limit& limit : at->second) watts += limit.watts;
  return watts;
}

Json node_json(const NodeNow& node, const SiteLimits& limits) {
  Json json{{"node", node.name}, {"watts", node.watts()}, {"how", name_of(node.how)}};
  if (node.how != NodeNow::How::kAssumed) json["until"] = utc_timestamp(node.until_s);
  json["rest_w"] = node.rest_w;
  if (!node.without.empty()) json["without_limits"] = node.without;
  if (limits.contains(node.name)) json["limits"] = collect::to_json(limits.at(node.name));
  if (!node.notes.empty()) json["notes"] = node.notes;
  return json;
}

std::string node_text(const NodeNow& node, const SiteLimits& limits) {
  std::string text = fmt::format("  {}  {:.0f} W {}", node.name, node.watts(), name_of(node.how));
  if (node.how == NodeNow::How::kLastKnown) text += " at " + utc_timestamp(node.until_s);
  if (limits.contains(node.name))
    text += fmt::format(", limits of {:.0f} W on {}, {:.0f} W without a limit", limit_of(limits, node),
                        counted(std::ssize(node.devices), "device"), node.rest_w);
  if (!node.without.empty()) text += "; no limits: " + node.without;
  for (const std::string& note : node.notes) text += "; " + note;
  return printable(text) + "\n";
}

// Nodes that an energy cap counts otherwise than by their meters.
std::vector<const NodeNow*> not_measured(const std::vector<NodeNow>& nodes) {
  std::vector<const NodeNow*> some;
  for (const NodeNow& node : nodes)
    if (node.how != NodeNow::How::kMeasured) some.push_back(&node);
  return some;
}

}  // namespace

Json to_json(const SiteStatus& status) {
  Json power = Json::array(), energy = Json::array();
  for (const PowerStatus& p : status.power) {
    Json nodes = Json::array();
    for (const NodeNow& node : p.nodes) nodes.push_back(node_json(node, p.decision.limits));
    power.push_back({{"name", p.cap.name},
                     {"kind", name_of(p.cap.kind)},
                     {"cap_w", p.cap.power.value},
                     {"watts", p.decision.watts},
                     {"limiting", p.decision.limiting},
                     {"met", p.decision.met},
                     {"least_w", p.decision.least_w}});
    if (p.decision.limiting) power.back()["bound_w"] = p.decision.bound_w;
    power.back()["nodes"] = std::move(nodes);
  }
  for (const EnergyStatus& e : status.energy) {
    Json nodes = Json::array();
    for (const NodeNow* node : not_measured(e.nodes)) nodes.push_back(node_json(*node, {}));
    energy.push_back({{"name", e.cap.name},
                      {"from", utc_timestamp(e.from_s)},
                      {"until", utc_timestamp(e.until_s)},
                      {"cap_j", e.cap.energy.value},
                      {"energy_j", e.decision.joules},
                      {"measured_j", e.measured_j},
                      {"assumed_j", e.assumed_j},
                      {"percent", e.decision.percent},
                      {"periods_without_reading", e.without_reading},
                      {"warnings", e.decision.warnings},
                      {"nodes_not_measured", std::move(nodes)}});
  }
  return {{"time", utc_timestamp(status.time_s)},
          {"power_caps", std::move(power)},
          {"energy_caps", std::move(energy)},
          {"happened", status.happened}};
}

std::string to_text(const SiteStatus& status) {
  std::string text = utc_timestamp(status.time_s) + "\n";
  for (const PowerStatus& p : status.power) {
    text +=
        fmt::format("{} cap {}: {:.0f} W of {:.0f} W by {}, {}{}\n", name_of(p.cap.kind), p.cap.name, p.decision.watts,
                    p.cap.power.value, counted(std::ssize(p.nodes), "node"),
                    p.decision.limiting ? fmt::format("limited to {:.0f} W", p.decision.bound_w) : "not limited",
                    p.decision.met ? "" : fmt::format("; it cannot be met: the least is {:.0f} W", p.decision.least_w));
    for (const NodeNow& node : p.nodes) text += node_text(node, p.decision.limits);
  }
  for (const EnergyStatus& e : status.energy) {
    text += fmt::format(
        "energy cap {}: {:.6g} kWh, {:.1f} % of {:.6g} kWh, from {} until {}; {:.6g} kWh of it assumed; {} "
        "without a reading\n",
        e.cap.name, e.decision.joules / kJoulesOfKwh, e.decision.percent, e.cap.energy.value / kJoulesOfKwh,
        utc_timestamp(e.from_s), utc_timestamp(e.until_s), e.assumed_j / kJoulesOfKwh,
        counted(e.without_reading, "period"));
    for (const NodeNow* node : not_measured(e.nodes)) text += node_text(*node, {});
  }
  return text;
}

}  // namespace molen::manage
