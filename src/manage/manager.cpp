#include "manage/manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "manage/site_records.h"

namespace molen::manage {
namespace {

constexpr std::ptrdiff_t kMostScriptsOfCap = 100;  // that run and wait
constexpr int kNotRun = 127;

std::vector<NodeNow> nodes_of(const CapOfNodes& cap, const std::vector<NodeRecord>& records, const Caps& caps,
                              double now_s) {
  const NodeTimes times{now_s, caps.stale_after.value, caps.hold.value};
  std::vector<NodeNow> nodes;
  for (const NodeRecord& record : records)
    if (cap.has(record.name)) nodes.push_back(node_now(record, times, cap.node_most.value));
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
  for (const PowerStatus& power : status.power) status.limits = least_of(status.limits, power.decision.limits);
  // The limits first, so that neither a long sum of energy nor what happens beside them keeps them from being renewed.
  order(status);
  for (const EnergyCap& cap : options_.caps.energy) look_at_energy(cap, records, status);
  for (const auto& happens : after_orders_) happens(status);
  (void)tend_scripts();
  status.happened.insert(status.happened.end(), ended_.begin(), ended_.end());
  ended_.clear();
  return status;
}

void Manager::look_at_power(const PowerCap& cap, const std::vector<NodeRecord>& records, SiteStatus& status) {
  const auto events =
      read_events(options_.database, cap.name, {"limiting", "lifted", "unmet", "met"}, "", status.time_s);
  const bool was_limiting = last_was(events, "limiting", "lifted"), was_unmet = last_was(events, "unmet", "met");
  PowerStatus power{cap, {}, nodes_of(cap, records, options_.caps, status.time_s)};
  power.decision = decide(cap, was_limiting, power.nodes);
  const PowerDecision& now = power.decision;
  const ScriptVariables variables{{"MOLEN_CAP_POWER_W", number(now.watts)},
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
  std::vector<ScopeCover> covers;
  for (const PeriodSum& sum : read_sums(options_.database, energy.from_s, std::min(energy.until_s, status.time_s))) {
    if (!cap.has(sum.cover.node)) continue;
    energy.measured_j += sum.cover.joules;
    energy.without_reading += sum.without_reading;
    covers.push_back(sum.cover);
  }
  energy.assumed_j = joules_of_gaps(covers) + assumed_joules(energy.nodes, energy.from_s, status.time_s);
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
    const ScriptVariables variables{{"MOLEN_CAP_LEVEL", std::to_string(level)},
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

// Records an event, and then has the cap's script run. So a manager that ends in between warns once rather than twice.
void Manager::happen(const CapOfNodes& cap, const collect::Event& event, ScriptVariables variables,
                     SiteStatus& status) {
  const std::string text =
      fmt::format("{}: {}{}", cap.name, event.text, options_.dry_run ? " (nothing is done in a dry run)" : "");
  status.happened.push_back(text);
  options_.say(text);
  if (options_.dry_run) return;
  record(cap.name, event);
  if (!cap.script) return;
  variables.insert(variables.begin(), {{"MOLEN_CAP", cap.name}, {"MOLEN_CAP_EVENT", event.kind}});
  Job job{cap.name, *cap.script, event.kind, std::move(variables), nullptr};
  const auto waiting = std::count_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.cap == cap.name; });
  if (waiting < kMostScriptsOfCap)
    jobs_.push_back(std::move(job));
  else
    record_end(job, {kNotRun, fmt::format("was not run: {} of this cap wait already", kMostScriptsOfCap)});
}

void Manager::record_end(const Job& job, const ScriptResult& result) {
  const std::string text = fmt::format("{} for '{}' {}", job.script.program.string(), job.event, result.text);
  record(job.cap, {options_.wall(), "script", collect::as_text(text), result.status});
  ended_.push_back(fmt::format("{}: {}", job.cap, text));
  options_.say(ended_.back());
}

bool Manager::tend_scripts() {
  std::set<std::string> busy;  // caps of which a script runs
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (busy.contains(job->cap)) {
      ++job;
      continue;
    }
    if (!job->running) job->running = std::make_unique<RunningScript>(job->script, job->variables);
    if (const auto result = job->running->look()) {
      record_end(*job, *result);
      job = jobs_.erase(job);
    } else {
      busy.insert(job->cap);
      ++job;
    }
  }
  return !jobs_.empty();
}

void Manager::end_scripts() {
  std::list<Job> jobs = std::exchange(jobs_, {});
  for (Job& job : jobs) {
    const bool ran = std::exchange(job.running, nullptr) != nullptr;
    record_end(job, {kNotRun, ran ? "was killed at the end of the manager" : "was not run: the manager ends"});
  }
}

}  // namespace molen::manage
