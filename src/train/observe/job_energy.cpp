#include "train/observe/job_energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/host_name.h"
#include "base/utf8.h"
#include "daemon/client.h"
#include "energy/cpu_busy.h"
#include "energy/open.h"
#include "launch/gather_texts.h"
#include "launch/throw_on_all_ranks.h"

namespace molen::train {
namespace {

constexpr std::size_t kReadingsKept = 4096;
constexpr std::chrono::seconds kSyncEvery(5);

// Merges the devices of all ranks of a host: a launcher may give each rank its own.
class VisibleDevices {
 public:
  void add(const Json& devices) {
    if (devices.is_null()) {
      all_ = true;
      return;
    }
    for (std::string& word : energy::visible_words(devices.get<std::string>()))
      if (std::find(words_.begin(), words_.end(), word) == words_.end()) words_.push_back(std::move(word));
  }
  std::optional<std::string> text() const {
    if (all_) return std::nullopt;
    return fmt::format("{}", fmt::join(words_, ","));
  }
  // Returns the number that the meters give to a rank's device; -1 if that cannot be told. `devices` and `device` are
  // the rank's.
  int number_of(const Json& devices, const Json& device) const {
    if (device.is_null()) return -1;
    const int place = device.get<int>();
    if (devices.is_null()) return all_ ? place : -1;
    VisibleDevices own;
    own.add(devices);
    if (place < 0 || static_cast<std::size_t>(place) >= own.words_.size()) return -1;
    const std::string& word = own.words_[static_cast<std::size_t>(place)];
    if (!all_) return static_cast<int>(std::find(words_.begin(), words_.end(), word) - words_.begin());
    const bool number = !word.empty() && word.size() < 5 && word.find_first_not_of("0123456789") == std::string::npos;
    return number ? std::atoi(word.c_str()) : -1;
  }

 private:
  bool all_ = false;
  std::vector<std::string> words_;
};

EnergyHost this_host(std::optional<int> device) {
  const std::string name = host_name();
  // The boot id identifies a host here. Counters belong to a running kernel, which containers with different host names
  // may share.
  const auto boot = energy::read_small("/proc/sys/kernel/random/boot_id");
  const auto cpus = energy::allowed_cpus(energy::Machine());
  return {boot && !boot.value().empty() ? boot.value() : name, name, energy::visible_gpus(std::getenv), device,
          cpus ? cpus.value() : ""};
}

OpenMeters open_as(const config::Config& config) {
  return [&config](const energy::VisibleGpus& visible) {
    energy::OpenOptions o;
    o.nvml.visible = visible.nvidia;
    o.amd_visible = visible.amd;
    o.nvml.sample_every = config.energy.sample_every;
    o.daemon = daemon::open_meters_here;
    return energy::open_meters(config.energy.meters, o);
  };
}

OpenModel model_of(const config::Config& config, const std::optional<energy::PowerFigures>& figures) {
  if (!figures) return {};
  return [&](const energy::Meters& measured, bool gpus, const energy::VisibleGpus& visible,
             const std::optional<std::string>& cpus) {
    energy::ModelOptions o;
    o.nvml.visible = visible.nvidia;
    o.cpus = cpus;
    o.read_every_s = std::max(config.energy.sample_every.value, energy::kModelWindowS);
    o.key = config.where("energy.model");
    return energy::open_model(*figures, measured, gpus, o);
  };
}

bool gpus_here(const energy::VisibleGpus& visible) {
  return energy::has_gpus(energy::Machine(), visible);
}

Json list_json(const std::optional<std::string>& list) {
  return list ? Json(replace_invalid_utf8(*list)) : Json(nullptr);
}

// Returns the processors of all ranks of a host; nothing where a rank's are not known.
std::optional<std::string> cpus_of(const std::vector<Json>& ranks) {
  std::vector<std::string> lists;
  for (const Json& rank : ranks) lists.push_back(rank["cpus"].get<std::string>());
  if (std::find(lists.begin(), lists.end(), "") != lists.end()) return std::nullopt;
  return union_of_cpus(lists);
}

// Returns what a host tells the others, or an error when its meters could not be opened.
Json describe_host(const std::string& name, const energy::Accountant& accountant, bool gpus) {
  Json scopes = Json::object();
  for (const auto& m : accountant.meters().meters) {
    const energy::MeterInfo& info = m->info();
    const bool read = info.source != energy::Source::kNone;
    scopes[info.scope] = {{"source", static_cast<int>(info.source)},
                          {"reason", read ? "" : info.detail},
                          {"remote", replace_invalid_utf8(info.remote)}};
  }
  return {{"name", name},
          {"scopes", scopes},
          {"meters", accountant.describe()},
          {"coverage", energy::to_json(energy::coverage_of(accountant.meters(), gpus))}};
}

// Refuses hosts that ask one controller, whose joules would count once for each of them.
void require_own_controllers(const std::vector<Json>& hosts) {
  std::map<std::string, std::string> host_of;  // by what is asked
  for (const Json& host : hosts)
    for (const auto& [scope, meter] : host["scopes"].items()) {
      const auto remote = meter["remote"].get<std::string>(), name = host["name"].get<std::string>();
      if (remote.empty()) continue;
      const auto [at, is_new] = host_of.emplace(remote, name);
      if (!is_new)
        throw UsageError(
            "energy.meters: the hosts {} and {} both ask {}, whose joules would count twice; write {{host}} in the "
            "URL, "
            "which stands for the name of each host, as in redfish:https://{{host}}-bmc",
            at->second, name, remote);
    }
}

}  // namespace

JobEnergy::JobEnergy(comm::Communicator& world, const config::Config& config, std::optional<int> device,
                     const std::optional<energy::PowerFigures>& figures)
    : JobEnergy(world, this_host(device), open_as(config), gpus_here, config.energy.sample_every,
                model_of(config, figures)) {}

JobEnergy::JobEnergy(comm::Communicator& world, const EnergyHost& host, const OpenMeters& open, const HasGpus& has_gpus,
                     Seconds sample_every, const OpenModel& open_model)
    : world_(world),
      host_name_(replace_invalid_utf8(host.name)),
      description_({{"available", Json::object()}, {"unavailable", Json::object()}}) {
  const Json self{{"id", replace_invalid_utf8(host.id)},
                  {"nvidia", list_json(host.visible.nvidia)},
                  {"amd", list_json(host.visible.amd)},
                  {"device", host.device ? Json(*host.device) : Json(nullptr)},
                  {"cpus", host.cpus}};
  VisibleDevices nvidia, amd;
  int lowest = world.size();
  std::vector<Json> of_host;  // the ranks of this host
  const auto ranks = launch::gather_texts(world, self.dump());
  for (int r = 0; r < world.size(); ++r) {
    const Json other = Json::parse(ranks[static_cast<std::size_t>(r)]);
    if (other["id"] != self["id"]) continue;
    lowest = std::min(lowest, r);
    nvidia.add(other["nvidia"]);
    amd.add(other["amd"]);
    of_host.push_back(other);
  }
  std::string own;
  std::unique_ptr<energy::PowerModel> model;
  opened_ = now().value;
  if (world.rank() == lowest) {
    const energy::VisibleGpus visible{nvidia.text(), amd.text()};
    try {
      accountant_ = std::make_unique<energy::Accountant>(open(visible), sample_every);
      opened_ = now().value;  // at once: its joules count from here on
      own = describe_host(host_name_, *accountant_, has_gpus(visible)).dump();
      if (open_model) model = open_model(accountant_->meters(), has_gpus(visible), visible, cpus_of(of_host));
    } catch (const UsageError& error) {
      own = Json{{"name", host_name_}, {"error", replace_invalid_utf8(error.what())}}.dump();
    }
  }
  exchange(world, own);
  if (open_model) model_ = std::make_unique<JobModel>(world, std::move(model), host_name_);
  std::vector<int> device_of;
  for (const Json& rank : of_host) {
    const bool of_amd = rank["nvidia"].is_null() && !rank["amd"].is_null();
    device_of.push_back(of_amd ? amd.number_of(rank["amd"], rank["device"])
                               : nvidia.number_of(rank["nvidia"], rank["device"]));
  }
  if (sample_every.value > 0) divide_by_phases(lowest, device_of, sample_every);
}

void JobEnergy::divide_by_phases(int lowest, const std::vector<int>& device_of, Seconds sample_every) {
  std::int32_t counters = 0;
  if (accountant_)
    for (const auto& m : accountant_->meters().meters) counters += m->info().joules_per_tick > 0 ? 1 : 0;
  world_.all_reduce(&counters, 1, DType::kI32, comm::Reduce::kMax);
  if (counters == 0) return;
  of_host_ = world_.split(lowest, world_.rank());
  phases_ = std::make_unique<PhaseEnergy>(*of_host_, device_of, accountant_.get(), opened_, sample_every);
}

std::vector<std::string> JobEnergy::keep_readings(const fs::path& folder, const store::EnergyRingHead& given) {
  const Json said = Json::parse(launch::broadcast_text(Json{{"attempt", given.attempt},
                                                            {"history", given.history},
                                                            {"spent", given.spent_before.by_scope},
                                                            {"total", given.spent_before.total},
                                                            {"seconds", given.spent_before.seconds}}
                                                           .dump(),
                                                       world_));
  store::EnergyRingHead head{said["attempt"], said["history"], static_cast<int>(hosts_), {}, {}};
  head.spent_before = {said["spent"], said["total"], said["seconds"]};
  // The scopes of earlier attempts are there too, so that their sums are handed on by attempts that do not read them.
  for (const auto& [scope, _] : scopes_) head.scopes.push_back(scope);
  for (const auto& [scope, _] : head.spent_before.by_scope)
    if (!scopes_.contains(scope)) head.scopes.push_back(scope);
  std::string failure;
  if (accountant_ && !head.scopes.empty()) {
    try {
      ring_ = std::make_unique<store::EnergyRing>(store::energy_ring_file(folder, head.attempt, world_.rank()), head);
    } catch (const Error& error) {
      failure = fmt::format("{}{}", hosts_ > 1 ? host_name_ + ": " : "", replace_invalid_utf8(error.what()));
    }
    std::vector<std::size_t> scope_of;  // by meter
    for (const auto& m : accountant_->meters().meters)
      scope_of.push_back(static_cast<std::size_t>(std::distance(scopes_.begin(), scopes_.find(m->info().scope))));
    accountant_->on_reading([this, scope_of, scopes = head.scopes.size()](std::span<const double> joules, double sum) {
      keep_reading(scope_of, scopes, joules, sum);
    });
    if (ring_ && hosts_ > 1) syncing_ = std::jthread([this](const std::stop_token& stop) { sync_readings(stop); });
  }
  std::vector<std::string> failures = launch::gather_texts(world_, failure);
  std::erase(failures, "");
  return failures;
}

// Pages of a shared file reach its file system late, but another host may have to read them.
void JobEnergy::sync_readings(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, stop, kSyncEvery, [&] { return stop.stop_requested(); })) ring_->sync();
}

void JobEnergy::keep_reading(const std::vector<std::size_t>& scope_of, std::size_t scopes,
                             std::span<const double> of_meters, double counted) {
  Joules reading{now_ns(), std::vector<double>(scopes, std::numeric_limits<double>::quiet_NaN())};
  for (std::size_t i = 0; i < of_meters.size(); ++i) reading.of_scope[scope_of[i]] = of_meters[i];
  if (ring_) ring_->record(now().value - opened_, reading.of_scope, counted, ended_at_);
  const std::lock_guard lock(readings_mutex_);
  readings_.push_back(std::move(reading));
  if (readings_.size() > kReadingsKept) readings_.pop_front();
}

void JobEnergy::end(std::int64_t step) {
  ended_at_ = step;
  if (accountant_) (void)accountant_->so_far();  // its reading says so
  if (ring_) ring_->sync();
}

std::vector<JobEnergy::Power> JobEnergy::power_between(std::int64_t start_ns, std::int64_t end_ns) const {
  const std::lock_guard lock(readings_mutex_);
  std::vector<Power> points;
  std::size_t s = 0;
  for (auto scope = scopes_.begin(); scope != scopes_.end(); ++scope, ++s) {
    const Joules* before = nullptr;  // the last change of the counter
    for (const Joules& reading : readings_) {
      const double joules = reading.of_scope[s];
      if (std::isnan(joules) || (before && !(joules > before->of_scope[s]))) continue;
      if (before && reading.ns > start_ns && before->ns < end_ns)
        points.push_back({scope->first, 1e-9 * static_cast<double>(std::max(before->ns, start_ns) - start_ns),
                          (joules - before->of_scope[s]) / (1e-9 * static_cast<double>(reading.ns - before->ns))});
      before = &reading;
    }
  }
  std::ranges::stable_sort(points, {}, &Power::time_s);
  return points;
}

void JobEnergy::exchange(comm::Communicator& world, const std::string& own) {
  std::vector<Json> hosts;
  for (const std::string& text : launch::gather_texts(world, own))
    if (!text.empty()) hosts.push_back(Json::parse(text));
  hosts_ = static_cast<std::int64_t>(hosts.size());
  for (const Json& host : hosts)
    if (host.contains("error"))
      throw UsageError("{}{}", hosts_ > 1 ? host["name"].get<std::string>() + ": " : "",
                       host["error"].get<std::string>());
  require_own_controllers(hosts);
  for (const Json& host : hosts)
    for (const auto& [scope, meter] : host["scopes"].items()) scopes_[scope];
  for (const Json& host : hosts) add_host(host);
}

void JobEnergy::add_host(const Json& host) {
  const std::string name = host["name"].get<std::string>();
  for (auto& [scope, s] : scopes_) {
    const bool there = host["scopes"].contains(scope);
    const auto source =
        there ? static_cast<energy::Source>(host["scopes"][scope]["source"].get<int>()) : energy::Source::kNone;
    if (source == energy::Source::kNone) {
      const std::string why = there ? host["scopes"][scope]["reason"].get<std::string>() : "no meter";
      if (s.lacking.empty()) s.lacking = hosts_ > 1 ? name + ": " + why : why;
    } else {
      s.source = s.source == energy::Source::kNone ? source : std::max(s.source, source);
    }
  }
  const auto coverage = energy::coverage_from_json(host["coverage"], name);
  if (coverage.summed.empty() && unmetered_.empty()) unmetered_ = hosts_ > 1 ? name + ": no meter" : "no meter";
  coverage_ += coverage;
  for (const char* kind : {"available", "unavailable"})
    for (const auto& [what, text] : host["meters"][kind].items()) {
      std::string key = hosts_ > 1 ? name + ": " + what : what;
      while (description_[kind].contains(key)) key += "'";
      description_[kind][key] = text;
    }
}

void JobEnergy::begin_step() {
  if (accountant_) accountant_->begin_step();
  if (model_) model_->begin_step();
}

void JobEnergy::end_step(std::vector<double>& sums) {
  own_ = accountant_ ? accountant_->end_step() : energy::StepEnergy{};
  const auto put = [&](const std::optional<double>& joules) {
    sums.push_back(joules.value_or(0.0));
    sums.push_back(joules ? 1.0 : 0.0);  // number of hosts with a reading, after the sum
  };
  // The sum over hosts is not finite where one that reads joules does not know their resolution.
  const auto put_resolution = [&](const std::optional<double>& joules, const std::optional<double>& resolution) {
    sums.push_back(resolution.value_or(joules ? std::numeric_limits<double>::infinity() : 0.0));
  };
  for (const auto& [scope, s] : scopes_) {
    const auto at = own_.scopes.find(scope);
    const energy::ScopeEnergy read = at == own_.scopes.end() ? energy::ScopeEnergy{} : at->second;
    put(read.joules);
    put_resolution(read.joules, read.resolution_j);
  }
  put(own_.total_j);
  put_resolution(own_.total_j, own_.total_resolution_j);
  put(own_.so_far_j);
  put(own_.added_j);
  if (model_) model_->end_step(sums);
}

energy::StepEnergy JobEnergy::step(std::span<const double> summed) const {
  MOLEN_CHECK(summed.size() == values(), "{} sums of joules, {} expected", summed.size(), values());
  energy::StepEnergy job;
  std::size_t at = 0;
  // Returns the joules of all hosts, or sets the reason why they are unknown: the lasting reason if there is one, else
  // this host's reason, else the number of hosts that lack them.
  const auto take = [&](const std::string& lasting, const std::string& here, std::string& reason) {
    const double joules = summed[at], read = summed[at + 1], all = static_cast<double>(hosts_);
    at += 2;
    if (read == all) return std::optional<double>(joules);
    reason = !lasting.empty() ? lasting
             : !here.empty()
                 ? here
                 : fmt::format("no reading in this step on {} of {} hosts", std::llround(all - read), hosts_);
    return std::optional<double>();
  };
  const auto resolution = [&](const std::optional<double>& joules) {
    const double sum = summed[at++];
    return joules && std::isfinite(sum) ? std::optional(sum) : std::nullopt;
  };
  for (const auto& [scope, s] : scopes_) {
    energy::ScopeEnergy& e = job.scopes[scope];
    const auto own = own_.scopes.find(scope);
    e.joules = take(s.lacking, own == own_.scopes.end() ? "" : own->second.reason, e.reason);
    if (e.joules) e.source = s.source;
    e.resolution_j = resolution(e.joules);
  }
  job.total_j = take(unmetered_, own_.total_reason, job.total_reason);
  job.total_resolution_j = resolution(job.total_j);
  if (summed[at + 1] > 0) job.so_far_j = summed[at];
  if (summed[at + 3] == static_cast<double>(hosts_)) job.added_j = summed[at + 2];
  if (model_) job.modelled = model_->step(summed.subspan(at + 4));
  return job;
}

energy::EnergySoFar JobEnergy::so_far() {
  const energy::EnergySoFar own = accountant_ ? accountant_->so_far() : energy::EnergySoFar{};
  std::vector<double> sums{own.total_j.value_or(0.0), own.total_j ? 1.0 : 0.0};
  for (const auto& [scope, s] : scopes_) {
    const auto joules = own.joules.find(scope);
    sums.push_back(joules == own.joules.end() ? 0.0 : joules->second);
    sums.push_back(own.lost.contains(scope) ? 1.0 : 0.0);
    const auto resolution = own.resolution_j.find(scope);
    const bool read = joules != own.joules.end(), known = resolution != own.resolution_j.end() && resolution->second;
    sums.push_back(known ? *resolution->second : read ? std::numeric_limits<double>::infinity() : 0.0);
  }
  const double seconds = now().value - opened_;
  world_.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64, comm::Reduce::kSum);
  energy::EnergySoFar job;
  job.phases = phases();
  job.by_host = of_hosts(own);
  if (model_) job.modelled = model_->so_far();
  job.seconds = seconds;
  if (sums[1] > 0) job.total_j = sums[0];
  std::size_t at = 2;
  for (const auto& [scope, s] : scopes_) {
    if (sums[at] > 0) job.joules[scope] = sums[at];
    if (sums[at + 1] > 0) job.lost[scope] = std::llround(sums[at + 1]);
    if (sums[at] > 0)
      job.resolution_j[scope] = std::isfinite(sums[at + 2]) ? std::optional(sums[at + 2]) : std::nullopt;
    at += 3;
  }
  job.doubts = doubts_of_hosts(own);
  return job;
}

// Returns on rank 0 the doubts of all hosts, each with its host's name where there are several.
std::map<std::string, std::string> JobEnergy::doubts_of_hosts(const energy::EnergySoFar& own) {
  std::map<std::string, std::string> all;
  std::set<std::string> hosts;
  const std::string text = own.doubts.empty() ? "" : Json{{"host", host_name_}, {"doubts", own.doubts}}.dump();
  for (const std::string& of_host : launch::texts_at_root(world_, text)) {
    if (of_host.empty()) continue;
    const Json host = Json::parse(of_host);
    std::string name = host["host"].get<std::string>();
    while (!hosts.insert(name).second) name += "'";
    for (const auto& [scope, why] : host["doubts"].items()) {
      std::string& doubt = all[scope];
      doubt += (doubt.empty() ? "" : "; ") + (hosts_ > 1 ? name + ": " : "") + why.get<std::string>();
    }
  }
  return all;
}

void JobEnergy::ran(const program::Program& program, const std::vector<program::Expanded>& ops,
                    const program::Timeline& timeline, const std::vector<data::LoaderWait>& waits) {
  if (phases_) phases_->add_step(program, ops, timeline, waits);
}

void JobEnergy::ran(OutsideSteps what, std::int64_t start_ns, std::int64_t end_ns) {
  if (phases_) phases_->add_outside(what, start_ns, end_ns);
}

void JobEnergy::collect_phases() {
  if (phases_) phases_->collect();
}

Json JobEnergy::phases() {
  if (!phases_) return Json::object();
  phases_->collect();
  Json accounts = phases_->accounts();
  const std::string own = accountant_ ? Json{{"host", host_name_}, {"scopes", std::move(accounts)}}.dump() : "";
  std::map<std::string, Json> by_host;
  for (const std::string& text : launch::texts_at_root(world_, own)) {
    if (text.empty()) continue;
    Json account = Json::parse(text);
    std::string name = account["host"].get<std::string>();
    while (by_host.contains(name)) name += "'";
    by_host[name] = std::move(account["scopes"]);
  }
  return sum_of_accounts(by_host);
}

std::map<std::string, energy::HostEnergy> JobEnergy::of_hosts(const energy::EnergySoFar& own) {
  std::map<std::string, energy::HostEnergy> hosts;
  if (hosts_ < 2) return hosts;
  std::string text;
  if (accountant_) {
    std::set<std::string> read, lost;
    for (const auto& m : accountant_->meters().meters) {
      if (!m->info().counted) continue;
      const std::string& scope = m->info().scope;
      if (own.joules.contains(scope)) read.insert(scope);
      if (own.lost.contains(scope)) lost.insert(scope);
    }
    const Json joules = own.total_j ? Json(*own.total_j) : Json();
    text = Json{{"host", host_name_}, {"joules", joules}, {"scopes", read}, {"lost", lost}}.dump();
  }
  for (const std::string& said : launch::texts_at_root(world_, text)) {
    if (said.empty()) continue;
    const Json host = Json::parse(said);
    std::string name = host["host"].get<std::string>();
    while (hosts.contains(name)) name += "'";
    hosts[name] = {host["joules"].is_null() ? std::nullopt : std::optional(host["joules"].get<double>()),
                   host["scopes"].get<std::vector<std::string>>(), host["lost"].get<std::vector<std::string>>()};
  }
  return hosts;
}

std::int64_t JobEnergy::opened_ns() const {
  return std::llround(opened_ * 1e9);
}

}  // namespace molen::train
