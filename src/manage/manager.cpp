#include "manage/manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "collect/sums.h"
#include "manage/site_records.h"

namespace molen::manage {
namespace {

std::vector<NodeNow> nodes_of(const CapOfNodes& cap, const std::vector<NodeRecord>& records, const Caps& caps,
                              double now_s) {
  std::vector<NodeNow> nodes;
  for (const NodeRecord& record : records)
    if (cap.has(record.name)) nodes.push_back(node_now(record, now_s, caps.stale_after.value, cap.node_most.value));
  return nodes;
}

// Returns which of two opposite events of a cap came last; `other` where neither did.
bool last_was(const std::vector<CapEvent>& events, const std::string& kind, const std::string& other) {
  double last_s = -1, last_of_other_s = -1;
  for (const CapEvent& event : events) {
    if (event.kind == kind) last_s = std::max(last_s, event.time_s);
    if (event.kind == other) last_of_other_s = std::max(last_of_other_s, event.time_s);
  }
  return last_s > last_of_other_s;
}

std::set<std::string> named_nodes(const Caps& caps) {
  std::set<std::string> names;
  const auto add = [&](const CapOfNodes& cap) {
    for (const std::string& name : cap.named()) names.insert(name);
  };
  for (const PowerCap& cap : caps.power) add(cap);
  for (const EnergyCap& cap : caps.energy) add(cap);
  return names;
}

std::string number(double value) {
  return fmt::format("{:.0f}", value);
}

}  // namespace

bool SiteStatus::met() const {
  return std::all_of(power.begin(), power.end(), [](const PowerStatus& p) { return p.decision.met; });
}

Manager::Manager(ManagerOptions options) : options_(std::move(options)), session_(collect::new_session()) {
  if (!options_.dry_run) database_ = collect::open_database(options_.database);
}

SiteStatus Manager::look() {
  SiteStatus status;
  status.time_s = options_.wall();
  after_orders_.clear();
  const auto records = read_nodes(options_.database, options_.caps, named_nodes(options_.caps), status.time_s);
  for (const PowerCap& cap : options_.caps.power) look_at_power(cap, records, status);
  for (const EnergyCap& cap : options_.caps.energy) look_at_energy(cap, records, status);
  for (const PowerStatus& power : status.power) status.limits = least_of(status.limits, power.decision.limits);
  // The limits first: a script may take its time.
  order(status);
  for (const auto& happens : after_orders_) happens(status);
  return status;
}

void Manager::look_at_power(const PowerCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status) {
  const auto events =
      read_events(options_.database, cap.name, {"limiting", "lifted", "unmet", "met"}, "", status.time_s);
  const bool was_limiting = last_was(events, "limiting", "lifted"), was_unmet = last_was(events, "unmet", "met");
  PowerStatus power{cap, {}, nodes_of(cap, records, options_.caps, status.time_s)};
  power.decision = decide(cap, was_limiting, power.nodes);
  const PowerDecision& now = power.decision;
  const Variables variables{{"MOLEN_CAP_POWER_W", number(now.watts)},
                            {"MOLEN_CAP_POWER_CAP_W", number(cap.power.value)},
                            {"MOLEN_CAP_LEAST_W", number(now.least_w)}};
  const auto happens = [&](const char* kind, const std::string& text) {
    const collect::Event event{status.time_s, kind, text, 0};
    after_orders_.emplace_back([this, cap, event, variables](SiteStatus& s) { happen(cap, event, variables, s); });
  };
  const std::string beside = fmt::format("{:.0f} W of {:.0f} W", now.watts, cap.power.value);
  if (now.limiting != was_limiting)
    happens(now.limiting ? "limiting" : "lifted",
            now.limiting ? beside + ": limits hold from now on" : beside + ": the limits are lifted");
  if (now.met == was_unmet)
    happens(now.met ? "met" : "unmet",
            now.met ? beside + ": the least limits are within the cap again"
                    : fmt::format("cannot be met: the least limits and what no limit bounds have {:.0f} W, the cap "
                                  "{:.0f} W",
                                  now.least_w, cap.power.value));
  status.power.push_back(std::move(power));
}

void Manager::look_at_energy(const EnergyCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status) {
  EnergyStatus energy{cap, {}, 0, 0, 0, 0, 0, nodes_of(cap, records, options_.caps, status.time_s)};
  std::tie(energy.from_s, energy.until_s) = period_of(cap, status.time_s);
  collect::SumQuery query;
  query.since_s = energy.from_s;
  query.until_s = energy.until_s;
  for (const collect::EnergySum& sum : collect::energy_sums(options_.database, query)) {
    if (!cap.has(sum.key)) continue;
    energy.measured_j += sum.joules.value_or(0.0);
    energy.without_reading += sum.without_reading;
  }
  energy.assumed_j = assumed_joules(energy.nodes, energy.from_s, status.time_s);
  std::set<int> warned;
  for (const CapEvent& event : read_events(options_.database, cap.name, {}, "warning", energy.from_s))
    warned.insert(static_cast<int>(event.count));
  energy.decision = decide(cap, energy.measured_j, energy.assumed_j, warned);
  for (const int level : energy.decision.warnings) {
    const collect::Event event{
        status.time_s, "warning",
        fmt::format("{} % is reached: {:.1f} % of {:.6g} kWh since {}", level, energy.decision.percent,
                    cap.energy.value / 3.6e6, utc_timestamp(energy.from_s)),
        level};
    const Variables variables{{"MOLEN_CAP_LEVEL", std::to_string(level)},
                              {"MOLEN_CAP_PERCENT", fmt::format("{:.2f}", energy.decision.percent)},
                              {"MOLEN_CAP_ENERGY_J", number(energy.decision.joules)},
                              {"MOLEN_CAP_ENERGY_CAP_J", number(cap.energy.value)},
                              {"MOLEN_CAP_FROM", utc_timestamp(energy.from_s)},
                              {"MOLEN_CAP_UNTIL", utc_timestamp(energy.until_s)}};
    after_orders_.emplace_back([this, cap, event, variables](SiteStatus& s) { happen(cap, event, variables, s); });
  }
  status.energy.push_back(std::move(energy));
}

// Orders the limits of all nodes that can keep some; those that need none are told so at once.
void Manager::order(const SiteStatus& status) {
  if (options_.dry_run) return;
  std::set<std::string> able;
  for (const PowerStatus& power : status.power)
    for (const NodeNow& node : power.nodes)
      if (!node.devices.empty()) able.insert(node.name);
  std::vector<collect::NodeOrder> orders;
  for (const std::string& node : able) {
    const auto limits = status.limits.find(node);
    orders.push_back({node, limits == status.limits.end() ? std::vector<collect::Limit>() : limits->second,
                      status.time_s + options_.caps.hold.value});
  }
  if (orders.empty()) return;
  if (const auto ordered = database_->order(orders); !ordered) throw Error("{}", ordered.reason());
}

void Manager::record(const std::string& cap, const collect::Event& event) {
  const std::vector<collect::Batch> batch{{collect::kCapPrefix + cap, session_, ++seq_, {}, {event}}};
  if (const auto stored = database_->store(batch); !stored) throw Error("{}", stored.reason());
}

// Records an event, and then runs the cap's script. So a manager that ends in between warns once rather than twice.
void Manager::happen(const CapOfNodes& cap, const collect::Event& event, Variables variables, SiteStatus& status) {
  const auto tell = [&](const std::string& text) {
    status.happened.push_back(text);
    options_.say(text);
  };
  tell(fmt::format("{}: {}{}", cap.name, event.text, options_.dry_run ? " (nothing is done in a dry run)" : ""));
  if (options_.dry_run) return;
  record(cap.name, event);
  if (!cap.script) return;
  variables.insert(variables.begin(), {{"MOLEN_CAP", cap.name}, {"MOLEN_CAP_EVENT", event.kind}});
  const ScriptResult result = run_script(*cap.script, variables);
  const std::string text = fmt::format("{} for '{}' {}", cap.script->program.string(), event.kind, result.text);
  tell(fmt::format("{}: {}", cap.name, text));
  record(cap.name, {options_.wall(), "script", collect::as_text(text), result.status});
}

}  // namespace molen::manage
