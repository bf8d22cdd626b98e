// The power limits that the site's manager gives to this node for a time (docs/decisions/0021-energy-caps.md). A device
// that a job has leased is kept at its limit by that lease; the others are leased here, and let go when a job wants
// one. Without word of the manager the limits end by themselves, and what was found is restored.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "daemon/leases.h"
#include "daemon/wire.h"

namespace molen::daemon {

// Thread-safe.
class PowerLimits {
 public:
  // `clock`: seconds of a clock that nobody sets. `said`: a sentence for a person; called by any thread.
  PowerLimits(Leases& leases, std::function<double()> clock, std::function<void(const std::string&)> said);
  // Restores what these limits have set.
  ~PowerLimits();
  PowerLimits(const PowerLimits&) = delete;
  PowerLimits& operator=(const PowerLimits&) = delete;

  // Returns what can be limited, and for how long the present limits hold.
  Limitable limitable();
  // Replaces all limits; they hold for `seconds` of the clock, and none lifts them at once. A limit beyond the bounds
  // of its setting is set to the nearest bound. Fails, and changes nothing, where one names a setting that may not be
  // limited.
  Result<actuate::Done> set(const std::vector<SettingValue>& limits, double seconds);
  // Keeps the limits until the token asks it to stop, looking every `look_s`; then restores all.
  void run(const std::stop_token& stop, double look_s);

 private:
  void keep();
  void let_go(const std::set<fs::path>& devices);
  void forget_expired();

  Leases& leases_;
  const std::function<double()> clock_;
  const std::function<void(const std::string&)> said_;
  std::mutex mutex_;  // guards the members below to own_
  std::condition_variable_any changed_;
  std::map<std::string, fs::path> devices_;  // of the limits: the lock of each setting's device
  double until_s_ = 0;
  bool news_ = false;
  std::mutex keeping_;  // guards own_, and is held while devices are leased or restored
  std::map<fs::path, std::unique_ptr<DeviceLease>> own_;  // by the device's lock
  std::set<std::string> trouble_;                         // that was said and lasts
};

}  // namespace molen::daemon
