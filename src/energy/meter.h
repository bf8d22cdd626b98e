// One source of energy readings of any kind: a hardware counter, integrated power, a recording, or nothing. A reading
// that could not be taken is a failure with its reason, never 0 J.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace molen::energy {

// The origin of joules; the words of metrics.jsonl.
enum class Source { kCounter, kPower, kModel, kNone };
const char* name_of(Source source);

struct Reading {
  Joules total;            // since the meter was opened; never decreases
  std::int64_t gaps = 0;   // number of energy losses (more than one wrap possible, samples missed): the difference of
                           // two readings is valid only when this number is equal in both
  std::int64_t ticks = 0;  // of a counter: `total` in its own unit, MeterInfo::joules_per_tick
  double age_s = 0;        // how long before the call of `read` the counter was read
};

struct MeterInfo {
  // "rapl-perf", "rapl-powercap", "nvml", "amd", "cray", "hwmon", "dcmi", "redfish", "replay", "null"
  std::string name;
  std::string scope;  // "cpu-package0", "gpu0", ...: scope.h has them all
  Source source = Source::kNone;
  std::string detail;     // the exact source: a file, an event, a device
  Seconds read_every{0};  // longest time between two reads without a gap; 0: any
  bool counted = true;    // part of the sum over scopes (choose_counted in scope.h)
  // A counter counts energy in ticks of this size, and its value changes at least this often. A meter that is no
  // counter has ticks of 0 J.
  double joules_per_tick = 0;
  Seconds changes_every{0};
  // The resource that is asked over a network, as "https://node7-bmc/redfish/v1/Chassis/1/Power#/PowerControl/0":
  // another host that asks it would count the same joules. Empty for what only this machine can read.
  std::string remote = {};
};

// Not thread-safe: one thread at a time (the Accountant ensures this).
class Meter {
 public:
  explicit Meter(MeterInfo info) : info_(std::move(info)) {}
  virtual ~Meter() = default;
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  const MeterInfo& info() const { return info_; }
  void set_counted(bool counted) { info_.counted = counted; }
  virtual Result<Reading> read() = 0;
  // Says why the joules so far may be wrong although each reading was one; empty: nothing says so.
  virtual std::string doubt() const { return ""; }
  // Says how the device runs at the moment, as "1410 of 1980 MHz, slowed by: power limit"; empty: not known. Any
  // thread may call it.
  virtual std::string condition() const { return ""; }

 private:
  MeterInfo info_;
};

// Gives the reason why a scope is not measured.
class NullMeter : public Meter {
 public:
  NullMeter(std::string scope, std::string reason)
      : Meter({"null", std::move(scope), Source::kNone, reason, Seconds(0), false}), reason_(std::move(reason)) {}
  Result<Reading> read() override { return Failure{reason_}; }

 private:
  std::string reason_;
};

struct Unavailable {
  std::string meter, scope, reason;
};

// The result of one kind of meter on this machine.
struct Meters {
  std::vector<std::unique_ptr<Meter>> meters;
  std::vector<Unavailable> unavailable;
};

}  // namespace molen::energy
