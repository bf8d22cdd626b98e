// One setting of a device that changes what it draws: the highest clock, or a power limit. molen only lowers: the
// greatest value that can be set is the one that was found. A setting that cannot be made is a failure with its reason,
// and then nothing stays changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "energy/meter.h"

namespace molen::actuate {

enum class Kind { kClock, kPower };
const char* name_of(Kind kind);  // "clock", "power limit"
const char* unit_of(Kind kind);  // "kHz", "uW": the units of all values of a kind

// A device may have several parts that are set together, such as the processors of a package. A state has a value for
// each part, in the order of ActuatorInfo::parts.
using State = std::vector<std::int64_t>;

struct Part {
  std::string name;                  // unique within the actuator: "policy0", "intel-rapl:0"
  std::int64_t least = 0, most = 0;  // what the device permits, whatever was found; most 0: nothing tells
};

struct ActuatorInfo {
  std::string id;       // the same in every process: "cpufreq:cpu-package0", "nvml-clock:GPU-8a..."
  std::string name;     // "cpufreq", "uncore", "powercap", "amdgpu-power", "nvml-clock", "nvml-power"
  std::string scope;    // what it acts on, as in energy/scope.h
  std::string control;  // the setting in words: "highest clock of the cores"
  Kind kind = Kind::kClock;
  std::string detail;   // the exact files or the device
  std::string through;  // who makes the setting, such as "daemon at PATH"; empty: this process
  std::vector<Part> parts;
  std::vector<std::int64_t> values;  // those that can be set, ascending; empty: any between the parts' bounds
  std::int64_t step = 1;             // between values that differ in effect, where `values` is empty
  std::int64_t rounding = 0;         // the device may read back a value that differs by so much from the one written
  bool readable = true;              // false: nothing tells what is set now (NVML, locked clocks)
  fs::path lock;                     // the kernel's file of the device, which is locked while a job sets it
};

struct Done {};

// The result of putting back what was found.
struct Restoration {
  std::vector<std::string> notes;    // sentences: what another program has set since, and what failed
  int restored = 0, left_alone = 0;  // parts
  int failed = 0;                    // parts that still have a value of molen's
  bool complete() const { return failed == 0; }
};

// Not thread-safe. The destructor changes nothing: Session restores, also after the process is killed.
class Actuator {
 public:
  // `original`: what was found. It must have a value for each part.
  Actuator(ActuatorInfo info, State original);
  virtual ~Actuator() = default;
  Actuator(const Actuator&) = delete;
  Actuator& operator=(const Actuator&) = delete;

  const ActuatorInfo& info() const { return info_; }
  // The bounds of `set`: `most` is what was found, over all parts.
  std::int64_t least() const;
  std::int64_t most() const;
  const State& original() const { return original_; }
  // Reads the original again, as a job must after it has locked the device.
  Result<Done> remember();
  // Returns at most `count` (at least 2) values that can be set, from the greatest to the least, evenly spread.
  std::vector<std::int64_t> ladder(std::size_t count) const;

  // Returns the greatest value over the parts as it is now.
  Result<std::int64_t> present() const;
  // Returns the state that `set(value)` writes: each part gets the value within its own bounds. Fails for a value that
  // cannot be set.
  Result<State> state_for(std::int64_t value) const;
  // Sets all parts, and reads back that they took it. A failure leaves all parts as they were, or says which not. Fails
  // where another program has set a value since.
  Result<Done> set(std::int64_t value);
  // Puts back what was found, as far as the present value is one that this object wrote.
  Restoration restore();
  // Puts `original` back into the parts whose present value is one of `written`. Other parts are left alone, and said.
  Restoration restore_to(const State& original, const std::vector<State>& written);

  // Reads the value of each part; a failure where `readable` is false.
  virtual Result<State> read() const = 0;

 protected:
  // Writes the value of one part.
  virtual Result<Done> write(std::size_t part, std::int64_t value) = 0;

 private:
  Result<Done> put(const State& wanted);
  bool same(std::int64_t a, std::int64_t b) const;
  bool is_ours(std::size_t part, std::int64_t value, const std::vector<State>& written) const;
  std::string label(std::size_t part) const;
  std::string quantity(std::int64_t value) const;

  ActuatorInfo info_;
  State original_;
  std::vector<State> written_;
};

using Unavailable = energy::Unavailable;  // {actuator, scope, why}

struct Actuators {
  std::vector<std::unique_ptr<Actuator>> actuators;
  std::vector<Unavailable> unavailable;
};

// Returns a text such as "2.4 GHz" or "250 W".
std::string quantity_text(Kind kind, std::int64_t value);

}  // namespace molen::actuate
