// The limits of the site's manager in the table of leases.
#include <algorithm>
#include <utility>

#include "daemon/leases.h"

namespace molen::daemon {

Leases::Wanted::Wanted(Leases& leases, const std::set<fs::path>& devices) : leases_(leases), devices_(devices) {
  const std::lock_guard lock(leases_.mutex_);
  leases_.wanted_.insert(devices.begin(), devices.end());
}

Leases::Wanted::~Wanted() {
  const std::lock_guard lock(leases_.mutex_);
  for (const fs::path& device : devices_) leases_.wanted_.erase(leases_.wanted_.find(device));
}

bool Leases::may_limit(const actuate::ActuatorInfo& info) const {
  return info.kind == actuate::Kind::kPower && info.readable && options_.limit_with.contains(info.name);
}

std::int64_t LimitableDevice::at_most(std::int64_t value) const {
  value = std::clamp(value, setting.least, setting.most);
  if (values.empty()) return std::max(setting.least, value - value % std::max<std::int64_t>(step, 1));
  const auto above = std::upper_bound(values.begin(), values.end(), value);
  const auto least = std::lower_bound(values.begin(), values.end(), setting.least);
  if (above != values.begin() && *std::prev(above) >= setting.least) return *std::prev(above);
  return least == values.end() ? setting.least : *least;
}

std::vector<LimitableDevice> Leases::limitable() {
  std::vector<LimitableDevice> all;
  if (options_.limit_with.empty()) return all;
  for (const auto& actuator : open_all().actuators) {
    const actuate::ActuatorInfo& info = actuator->info();
    if (!may_limit(info)) continue;
    Bounds::Range range = options_.bounds.range_of(*actuator);
    {
      const std::lock_guard lock(mutex_);
      if (const auto held = held_.find(info.lock); held != held_.end())
        if (const auto most = held->second.most.find(info.id); most != held->second.most.end())
          range.most = most->second;  // the present value is not the one that was found
    }
    if (range.most < range.least) continue;
    all.push_back({{info.id, info.scope, range.least, range.most, std::nullopt}, info.values, info.step, info.lock});
    if (const auto now = actuator->present()) all.back().setting.present = now.value();
  }
  return all;
}

void Leases::set_limits(std::map<std::string, std::int64_t> limits) {
  const std::lock_guard lock(mutex_);
  limits_ = std::move(limits);
}

std::optional<std::int64_t> Leases::limit_of(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto limit = limits_.find(id);
  return limit == limits_.end() ? std::nullopt : std::optional(limit->second);
}

bool Leases::is_taken(const fs::path& device) {
  const std::lock_guard lock(mutex_);
  return wanted_.contains(device) || held_.contains(device);
}

}  // namespace molen::daemon
