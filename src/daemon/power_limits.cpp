#include "daemon/power_limits.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"
#include "base/units.h"

namespace molen::daemon {

PowerLimits::PowerLimits(Leases& leases, std::function<double()> clock, std::function<void(const std::string&)> said)
    : leases_(leases), clock_(std::move(clock)), said_(std::move(said)) {
  leases_.on_wanted([this](const std::set<fs::path>& devices) { let_go(devices); });
}

PowerLimits::~PowerLimits() {
  leases_.on_wanted({});
  leases_.set_limits({});
  const std::lock_guard lock(keeping_);
  own_.clear();
}

Limitable PowerLimits::limitable() {
  Limitable all;
  for (const LimitableDevice& device : leases_.limitable()) all.settings.push_back(device.setting);
  const std::lock_guard lock(mutex_);
  if (!devices_.empty()) all.seconds = std::max(0.0, until_s_ - clock_());
  return all;
}

Result<actuate::Done> PowerLimits::set(const std::vector<SettingValue>& limits, double seconds) {
  const auto known = leases_.limitable();
  std::map<std::string, std::int64_t> values;
  std::map<std::string, fs::path> devices;
  std::vector<std::string> names;
  for (const LimitableDevice& device : known) names.push_back(device.setting.id);
  for (const SettingValue& limit : limits) {
    const auto at = std::find_if(known.begin(), known.end(), [&](const auto& d) { return d.setting.id == limit.id; });
    if (at == known.end())
      return Failure{fmt::format("{}: this daemon limits no such setting (--limit-with){}", limit.id,
                                 did_you_mean(limit.id, names))};
    values[limit.id] = at->at_most(limit.value);
    devices[limit.id] = at->lock;
  }
  {
    const std::lock_guard lock(mutex_);
    if (devices_.empty() != devices.empty())
      said_(devices.empty() ? std::string("the manager of the site has lifted the power limits")
                            : fmt::format("the manager of the site limits the power of {}",
                                          counted(static_cast<std::int64_t>(devices.size()), "setting")));
    devices_ = std::move(devices);
    until_s_ = clock_() + seconds;
    news_ = true;
    leases_.set_limits(std::move(values));
  }
  changed_.notify_all();
  return actuate::Done{};
}

void PowerLimits::forget_expired() {
  const std::lock_guard lock(mutex_);
  if (devices_.empty() || clock_() < until_s_) return;
  devices_.clear();
  leases_.set_limits({});
  said_("nobody has renewed the power limits in time; what was found is restored");
}

void PowerLimits::let_go(const std::set<fs::path>& devices) {
  const std::lock_guard lock(keeping_);
  for (const fs::path& device : devices) own_.erase(device);
}

// Brings this process's own leases in line with the limits.
void PowerLimits::keep() {
  forget_expired();
  std::map<fs::path, std::vector<std::string>> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, device] : devices_) wanted[device].push_back(id);
  }
  const std::lock_guard lock(keeping_);
  std::set<std::string> trouble;
  std::erase_if(own_, [&](const auto& entry) { return !wanted.contains(entry.first); });
  for (const auto& [device, ids] : wanted) {
    auto at = own_.find(device);
    if (at != own_.end() && !at->second->why_end().empty()) {
      own_.erase(at);
      at = own_.end();
    }
    if (at == own_.end()) {
      if (leases_.is_taken(device)) continue;  // its lease obeys
      auto lease = leases_.take_for_limits(ids);
      if (!lease) {
        trouble.insert(lease.reason());
        continue;
      }
      at = own_.emplace(device, std::move(lease).value()).first;
    }
    if (const auto obeyed = at->second->obey_limits(); !obeyed) trouble.insert(obeyed.reason());
  }
  for (const std::string& text : trouble)
    if (!trouble_.contains(text)) said_(fmt::format("a power limit does not hold: {}", text));
  trouble_ = std::move(trouble);
}

void PowerLimits::run(const std::stop_token& stop, double look_s) {
  while (!stop.stop_requested()) {
    try {
      keep();
    } catch (const std::exception& error) {
      said_(error.what());
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, std::chrono::duration<double>(look_s), [this] { return news_; });
    news_ = false;
  }
  const std::lock_guard lock(keeping_);
  own_.clear();
}

}  // namespace molen::daemon
