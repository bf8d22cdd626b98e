#include "train/policy/energy_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "daemon/client.h"
#include "launch/gather_texts.h"
#include "launch/throw_on_all_ranks.h"

namespace molen::train {
namespace {

// The settings that a search may try: over the range of an A100, a step of the clock is then 6 % of the highest one.
constexpr std::size_t kSettings = 16;
// min_time climbs from here, as EAR's default does (P-state 4).
constexpr std::size_t kClimbFrom = 4;
// A budget says so when it has had no joules for so many steps.
constexpr int kStepsWithoutJoules = 20;

// In steps that are the program's, its ops set the clocks.
constexpr std::string_view kByProgram = "slack";
constexpr std::size_t kProgramsOwn = 1;  // its place in the ladder

bool climbs(const std::string& policy) {
  return policy == "min_time" || policy == "min_time_energy";
}

double in_si(actuate::Kind kind, std::int64_t value) {
  return static_cast<double>(value) * (kind == actuate::Kind::kClock ? 1e3 : 1e-6);
}

// Returns whether a job that computes on this kind of device may change the setting. The clock of the uncore is left to
// the processor.
bool is_for(const std::string& name, const std::string& scope, bool cuda) {
  const auto starts = [&](const char* prefix) { return scope.starts_with(prefix); };
  if (name == "uncore") return false;
  return cuda ? starts("gpu") || starts("superchip") || starts("accel") : starts("cpu");
}

std::vector<std::string> ids_of(const actuate::Actuators& here, actuate::Kind kind, bool cuda) {
  std::vector<std::string> ids;
  for (const auto& a : here.actuators)
    if (a->info().kind == kind && is_for(a->info().name, a->info().scope, cuda)) ids.push_back(a->info().id);
  return ids;
}

// Returns the words of a host for the others: the values of each kind that it can set, and why it cannot set others.
Json host_settings(const std::string& name, const actuate::Actuators& here, bool cuda) {
  Json host{{"host", replace_invalid_utf8(name)},
            {"clock", Json::array()},
            {"power limit", Json::array()},
            {"why", Json::array()}};
  for (const auto& a : here.actuators)
    if (Json& values = host[name_of(a->info().kind)]; values.empty() && is_for(a->info().name, a->info().scope, cuda))
      for (const std::int64_t value : a->ladder(kSettings)) values.push_back(value);
  for (const auto& u : here.unavailable)
    if (is_for(u.meter, u.scope, cuda))
      host["why"].push_back(replace_invalid_utf8(fmt::format("{} of {}: {}", u.meter, u.scope, u.reason)));
  return host;
}

// Returns the greatest value of a device that is no more than the wanted one; its least value if there is none.
std::int64_t value_for(const actuate::Actuator& device, std::int64_t wanted) {
  if (wanted >= device.most()) return device.most();
  std::int64_t best = device.least();
  if (device.info().values.empty()) return std::max(wanted, best);
  for (const std::int64_t value : device.info().values)  // ascending
    if (value >= device.least() && (value <= wanted || best < device.least())) best = value;
  return best;
}

Json interval_json(const std::optional<policy::Interval>& interval) {
  if (!interval) return Json();
  return {{"value", interval->value}, {"low", interval->low}, {"high", interval->high}, {"pairs", interval->pairs}};
}

// Returns the policy's name; energy.on_budget = "slow" looks for the least energy.
std::string policy_of(const config::Config& config) {
  return config.energy.slows() ? "min_energy" : config.energy.policy;
}

// Returns the setting with which the others are compared, by its place in the ladder.
std::size_t reference_of(const std::string& policy, std::size_t settings) {
  return climbs(policy) ? std::min(kClimbFrom, settings - 1) : 0;
}

std::unique_ptr<policy::StepPolicy> step_policy(const std::string& name, const config::Config& config,
                                                std::vector<double> settings, const policy::SamplingOptions& sampling) {
  policy::StepPolicyOptions o;
  if (name == kByProgram) o.names = {"the highest clock", "the program's clocks"};
  o.reference = reference_of(name, settings.size());
  o.settings = std::move(settings);
  o.sampling = sampling;
  if (config.energy.slowdown > 0.0) {
    o.slowdown = config.energy.slowdown;
    o.selector = policy::Selector::kMaxSlowdown;
  }
  // The program's clocks are the one candidate beside the greatest clock.
  return policy::make_step_policy(name == kByProgram ? "min_energy" : name, o);
}

}  // namespace

void require_clocks_agree(comm::Communicator& world, const config::Config& config,
                          const std::vector<std::int64_t>& program_khz) {
  const bool wanted = config.energy.policy == kByProgram && !config.energy.power_budget;
  launch::throw_on_all_ranks(world, [&] {
    if (wanted && program_khz.empty())
      throw UsageError(
          "{}: the policy {} leaves the clocks to the program, and the program of rank {} has no op that sets one; "
          "`molen simulate --clocks --programs FOLDER` writes programs that do, and `molen train --program FOLDER` "
          "runs them",
          config.where("energy.policy"), kByProgram, world.rank());
    if (!wanted && !program_khz.empty())
      throw UsageError(
          "the program of rank {} sets clocks (set_clock), which needs energy.policy = \"{}\" and no "
          "energy.power_budget; leave these ops out to run it at the clocks that are set",
          world.rank(), kByProgram);
  });
}

EnergyPolicyOptions policy_options_here(bool cuda) {
  EnergyPolicyOptions o;
  o.open = daemon::open_actuators_here;
  o.hold = daemon::hold;
  o.session.journals = actuate::default_journals();
  o.session.guardian = {"/proc/self/exe", "energy", "guard", "--journal"};
  o.cuda = cuda;
  return o;
}

EnergyPolicy::EnergyPolicy(comm::Communicator& world, const config::Config& config, std::string coverage)
    : world_(world),
      name_(config.energy.power_budget ? "power_budget" : policy_of(config)),
      key_(config.where(config.energy.power_budget ? "energy.power_budget"
                        : config.energy.slows()    ? "energy.on_budget"
                                                   : "energy.policy")),
      coverage_(std::move(coverage)),
      asked_(config.energy.power_budget),
      by_program_(!config.energy.power_budget && config.energy.policy == kByProgram) {}

EnergyPolicy::~EnergyPolicy() {
  end();
}

std::unique_ptr<EnergyPolicy> EnergyPolicy::open(comm::Communicator& world, const JobEnergy& energy,
                                                 const config::Config& config,
                                                 const std::vector<std::int64_t>& program_khz,
                                                 const std::function<EnergyPolicyOptions()>& options) {
  const std::string name = policy_of(config);
  if (!config.energy.power_budget && (name == "none" || name == "monitor")) return nullptr;
  EnergyPolicyOptions o = options();
  const energy::Coverage& coverage = energy.coverage();
  std::unique_ptr<EnergyPolicy> made(new EnergyPolicy(world, config, coverage.partial()));
  // Joules that leave out what is set would be saved by setting it.
  const auto missing = coverage.missing.find(o.cuda ? "gpu" : "cpu");
  if (missing != coverage.missing.end() && made->name_ != "min_time")
    throw UsageError(
        "{}: needs the joules of the {} that it sets, and no meter reads them on {} of {} hosts "
        "(`molen energy list` says why)",
        made->key_, o.cuda ? "GPUs" : "processors", missing->second, coverage.hosts);
  if (made->by_program_ && coverage.hosts != world.size())
    throw UsageError(
        "{}: {} ranks run on {} hosts, and ranks of one host would set each other's clocks: the policy {} is "
        "built for one rank a host",
        made->key_, world.size(), coverage.hosts, kByProgram);
  actuate::Actuators here;
  std::string own;
  if (energy.leads_host()) {
    here = o.open();
    own = host_settings(energy.host_name(), here, o.cuda).dump();
  }
  std::vector<Json> hosts;
  for (const std::string& text : launch::gather_texts(world, own))
    if (!text.empty()) hosts.push_back(Json::parse(text));
  made->choose_settings(hosts);
  if (made->by_program_) made->ladder_ = {made->ladder_.front(), made->ladder_.back()};
  o.session.said = [policy = made.get()](const std::string& text) { policy->news_.push_back(text); };
  launch::throw_on_all_ranks(world, [&] {
    if (energy.leads_host()) made->open_session(std::move(here), o);
    if (made->by_program_) made->take_programs_clocks(program_khz);
    std::vector<double> settings;
    for (const std::int64_t value : made->ladder_) settings.push_back(in_si(made->kind_, value));
    if (world.rank() == 0 && made->asked_)
      made->budget_.emplace(settings, *made->asked_);
    else if (world.rank() == 0)
      made->policy_ = step_policy(name, config, settings, o.sampling);
  });
  if (!made->asked_) made->next_ = reference_of(name, made->ladder_.size());
  made->set(static_cast<std::int32_t>(made->next_) + 1, false);  // the first step runs at the reference
  return made;
}

// Takes the first kind of which every host has a setting. All hosts get the values of the first one.
void EnergyPolicy::choose_settings(const std::vector<Json>& hosts) {
  using actuate::Kind;
  std::vector<Kind> kinds{Kind::kClock, Kind::kPower};
  if (asked_ || name_ == "sweep") kinds = {Kind::kPower, Kind::kClock};
  // The rule of min_time compares gains of time with gains of the clock, and programs set clocks alone.
  if (climbs(name_) || by_program_) kinds = {Kind::kClock};
  for (const Kind kind : kinds) {
    const auto has = [&](const Json& host) { return host[name_of(kind)].size() > 1; };
    if (!std::ranges::all_of(hosts, has)) continue;
    kind_ = kind;
    ladder_ = hosts.front()[name_of(kind)].get<std::vector<std::int64_t>>();
    return;
  }
  std::string why;
  for (const Json& host : hosts) {
    std::vector<std::string> can;
    for (const Kind kind : kinds)
      if (host[name_of(kind)].size() > 1) can.emplace_back(name_of(kind));
    why +=
        fmt::format("; {} can set {}", host["host"].get<std::string>(),
                    can.empty() ? "nothing that this policy sets" : fmt::format("the {}", fmt::join(can, " and the ")));
    for (const Json& reason : host["why"]) why += ", " + reason.get<std::string>();
  }
  throw UsageError("{}: no {} of the job's devices can be set on all hosts{}", key_,
                   kinds.size() > 1 ? "clock and no power limit" : "clock", why);
}

// Tries the second setting on each device: a right that is missing shows only by that.
void EnergyPolicy::open_session(actuate::Actuators here, const EnergyPolicyOptions& options) {
  const auto ids = ids_of(here, kind_, options.cuda);
  auto session = options.hold(std::move(here), ids, options.session);
  if (!session) throw UsageError("{}: {}", key_, session.reason());
  session_ = std::move(session).value();
  for (std::size_t i = 0; i < session_->size(); ++i)
    for (const std::size_t place : {std::size_t{1}, std::size_t{0}})
      if (const auto done = session_->set(i, value_for(session_->actuator(i), ladder_[place])); !done)
        throw UsageError("{}: {}", key_, done.reason());
}

void EnergyPolicy::took(const policy::StepReading& reading) {
  if (ended_) return;
  if (policy_) {
    policy::Decision decision = policy_->next(reading);
    next_ = decision.setting;
    if (!decision.news.empty()) news_.push_back(fmt::format("energy.policy {}: {}", name_, decision.news));
  } else if (budget_) {
    next_ = budget_->next(reading);
    without_joules_ = reading.joules ? 0 : without_joules_ + 1;
    if (without_joules_ == kStepsWithoutJoules)
      news_.push_back(fmt::format("{}: no joules for {} steps, so the setting stays ({})", key_, kStepsWithoutJoules,
                                  actuate::quantity_text(kind_, ladder_[present_])));
    if (budget_->out_of_reach() && !std::exchange(out_of_reach_, true))
      news_.push_back(fmt::format("energy.power_budget: even at the least setting, {}, more power is expected",
                                  actuate::quantity_text(kind_, ladder_.back())));
  }
}

std::int32_t EnergyPolicy::wanted() const {
  return policy_ || budget_ ? static_cast<std::int32_t>(next_) + 1 : 0;
}

void EnergyPolicy::set(std::int32_t wanted, bool refused) {
  if (ended_) return;
  if (refused) {
    for (const std::string& why : launch::gather_texts(world_, replace_invalid_utf8(failure_)))
      if (!why.empty()) refusal_ += (refusal_.empty() ? "" : "; ") + why;
    news_.push_back(fmt::format("{}: the policy ends, and what was found is restored: {}", key_, refusal_));
    end();
    return;
  }
  const auto place = static_cast<std::size_t>(std::max(wanted - 1, 0));
  if (session_)
    if (const auto guarded = session_->keep_guarded(); !guarded && failure_.empty()) failure_ = guarded.reason();
  if (place == present_ || place >= ladder_.size()) return;
  present_ = place;
  last_khz_ = 0;
  if (!(by_program_ && place == kProgramsOwn)) set_devices(ladder_[place]);
}

void EnergyPolicy::set_devices(std::int64_t value) {
  for (std::size_t i = 0; session_ && i < session_->size(); ++i) {
    const auto done = session_->set(i, value_for(session_->actuator(i), value));
    if (!done && failure_.empty()) failure_ = done.reason();
  }
}

// With one rank a host, this rank leads its host.
void EnergyPolicy::take_programs_clocks(const std::vector<std::int64_t>& khz) {
  for (std::size_t i = 0; i < session_->size(); ++i) {
    const actuate::Actuator& device = session_->actuator(i);
    const auto text = [&](std::int64_t value) { return actuate::quantity_text(kind_, value); };
    if (khz.front() > device.most() || khz.back() < device.least())
      throw UsageError("{}: the program sets clocks from {} to {}, and {} can be set from {} to {} here", key_,
                       text(khz.back()), text(khz.front()), device.info().id, text(device.least()),
                       text(device.most()));
    std::vector<std::int64_t> values;
    for (const std::int64_t wanted : khz) values.push_back(value_for(device, wanted));
    if (const auto announced = session_->announce(i, values); !announced)
      throw UsageError("{}: {}", key_, announced.reason());
    if (khz.front() < device.most())
      news_.push_back(
          fmt::format("{}: the highest clock of the program, {}, is below that of {}, {}, so work without slack is "
                      "slower too",
                      key_, text(khz.front()), device.info().id, text(device.most())));
  }
}

void EnergyPolicy::set_by_program(std::int64_t khz) {
  if (ended_ || !by_program_ || present_ != kProgramsOwn || std::exchange(last_khz_, khz) == khz) return;
  set_devices(khz);
}

void EnergyPolicy::end() {
  if (std::exchange(ended_, true) || !session_) return;
  for (const std::string& note : session_->end().notes) news_.push_back(note);
  session_.reset();
}

void EnergyPolicy::gather_news() {
  const auto all = launch::gather_texts(world_, Json(take_news()).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (world_.rank() != 0) return;
  for (const std::string& text : all)
    for (const Json& news : Json::parse(text)) news_.push_back(news.get<std::string>());
}

std::optional<double> EnergyPolicy::setting() const {
  if (ended_ || (by_program_ && present_ == kProgramsOwn)) return std::nullopt;
  return in_si(kind_, ladder_[present_]);
}

std::vector<std::string> EnergyPolicy::take_news() {
  return std::exchange(news_, {});
}

Json EnergyPolicy::summary() const {
  Json settings = Json::array();
  for (const std::int64_t value : ladder_) settings.push_back(in_si(kind_, value));
  if (by_program_) settings.back() = "program";
  Json all{{"policy", name_},
           {"kind", actuate::name_of(kind_)},
           {"unit", kind_ == actuate::Kind::kClock ? "Hz" : "W"},
           {"settings", settings},
           {"coverage", coverage_},
           {"chosen", nullptr},
           {"savings", {{"joules", nullptr}, {"seconds", nullptr}}},
           {"budget_w", asked_ ? Json(asked_->value) : Json()},
           {"refused", refusal_},
           {"text", by_program_ && present_ == kProgramsOwn
                        ? "the program set the clocks of the last step"
                        : fmt::format("the last setting was {}", actuate::quantity_text(kind_, ladder_[present_]))}};
  if (!policy_) return all;
  if (const auto chosen = policy_->chosen()) all["chosen"] = settings[*chosen];
  const policy::Savings& savings = policy_->savings();
  all["savings"] = {{"joules", interval_json(savings.joules())}, {"seconds", interval_json(savings.seconds())}};
  all["text"] =
      savings.pairs() > 1 ? savings.text() : "nothing is claimed: the chosen setting was not measured in pairs";
  return all;
}

}  // namespace molen::train
