// One source of energy readings, whatever it stands on: a hardware counter, integrated power, a recording, or nothing.
// A reading that could not be taken is a reason, never 0 J.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace molen::energy {

// How joules come about; the words of metrics.jsonl.
enum class Source { kCounter, kPower, kModel, kNone };
const char* name_of(Source source);

struct Reading {
  Joules total;           // since the meter was opened; never decreases
  std::int64_t gaps = 0;  // times that energy was lost (more than one wrap possible, samples missed): a difference of
                          // two readings is valid only where this is equal in both
};

struct MeterInfo {
  std::string name;   // "rapl-perf", "rapl-powercap", "nvml", "replay", "null"
  std::string scope;  // "cpu-package0", "dram0", "psys", "gpu0"; "cpu-package0-die1" where a package has several dies
  Source source = Source::kNone;
  std::string detail;     // what exactly is read: a file, an event, a device
  Seconds read_every{0};  // longest time between two reads without a gap; 0: any
  bool counted = true;    // part of the sum over scopes: false for what contains other counted scopes
};

// Not thread-safe: one thread at a time (the Accountant sees to it).
class Meter {
 public:
  explicit Meter(MeterInfo info) : info_(std::move(info)) {}
  virtual ~Meter() = default;
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  const MeterInfo& info() const { return info_; }
  void set_counted(bool counted) { info_.counted = counted; }
  virtual Result<Reading> read() = 0;

 private:
  MeterInfo info_;
};

// Says for a scope why it is not measured.
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

// What one kind of meter found on this machine.
struct Meters {
  std::vector<std::unique_ptr<Meter>> meters;
  std::vector<Unavailable> unavailable;
};

}  // namespace molen::energy
