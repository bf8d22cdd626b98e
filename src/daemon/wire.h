// The lines between a job, or a sender with limits, and the energy daemon of its node, protocol 1
// (docs/formats/daemon.md): one JSON object per line. The daemon welcomes or closes; then it answers each request of
// the job with one line. Both sides parse lines from outside, so each function refuses with UsageError what it does not
// know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actuate/actuator.h"
#include "energy/meter.h"

namespace molen::daemon {

inline constexpr int kProtocol = 1;
inline constexpr std::size_t kMostRequestBytes = 16 * 1024;   // with its newline
inline constexpr std::size_t kMostAnswerBytes = 1024 * 1024;  // with its newline
inline constexpr std::size_t kMostSettings = 64;              // of a lease
inline constexpr std::size_t kMostEntries = 4096;             // of a list in an answer

// A value of a setting: kHz or uW.
struct SettingValue {
  std::string id;
  std::int64_t value = 0;
  bool operator==(const SettingValue&) const = default;
};

struct Request {
  enum class Kind { kList, kRead, kLease, kSet, kRestore, kLimitable, kLimit };
  Kind kind = Kind::kList;
  std::vector<std::string> settings = {};  // kLease: ids of actuators; kSet: one of them
  std::int64_t value = 0;                  // kSet: kHz or uW
  std::vector<SettingValue> limits = {};   // kLimit: power limits; none lifts them
  double seconds = 0;                      // kLimit: for which they hold
  bool operator==(const Request&) const = default;
};

struct MeterEntry {
  std::string scope, meter, detail;  // as MeterInfo
  energy::Source source = energy::Source::kNone;
  double joules_per_tick = 0, changes_every_s = 0;  // as MeterInfo
};

// A setting as the peer may make it.
struct SettingEntry {
  std::string id, name, scope, control, detail;  // as ActuatorInfo
  actuate::Kind kind = actuate::Kind::kClock;
  std::int64_t least = 0, most = 0;          // kHz or uW; the bounds of the device and of the administrator
  std::vector<std::int64_t> values = {};     // those that can be set, ascending; empty: any between the bounds
  std::int64_t step = 1;                     // as ActuatorInfo
  bool readable = true;                      // as ActuatorInfo
  std::optional<std::int64_t> present = {};  // what is set now; absent where the device does not tell
  std::string holder = {};                   // who has it now, in words; empty: nobody, or the peer's own connection
};

struct Listing {
  std::vector<MeterEntry> meters;
  std::vector<SettingEntry> settings;
  struct Withheld {
    std::string id, scope, reason;
  };
  std::vector<Withheld> withheld;  // settings of this machine that the peer may not make, and why
};

// A power limit that the site's manager may set. Values are uW.
struct LimitableSetting {
  std::string id, scope;
  std::int64_t least = 0, most = 0;
  std::optional<std::int64_t> present = {};  // what is set now; absent where the device does not tell
  bool operator==(const LimitableSetting&) const = default;
};
struct Limitable {
  std::vector<LimitableSetting> settings;
  double seconds = 0;  // for which the present limits hold; 0: there are none
  bool operator==(const Limitable&) const = default;
};

struct ReadingEntry {
  std::string scope;
  std::optional<energy::Reading> reading;
  std::string reason;  // why there is none
};

struct Answer {
  enum class Kind { kWelcome, kListing, kReadings, kLeased, kSet, kRestored, kLimitable, kRefused, kClosing };
  Kind kind = Kind::kWelcome;
  Listing listing;
  std::vector<ReadingEntry> readings;
  std::optional<std::int64_t> present;  // kSet: what is set now; absent where the device does not tell
  actuate::Restoration restoration;
  Limitable limitable;
  std::string reason;  // of a refusal; kClosing: after this one the daemon closes the connection
};

// Each returns a line with its newline. `answer_line` throws Error for an answer longer than kMostAnswerBytes.
std::string request_line(const Request& request);
std::string answer_line(const Answer& answer);
std::string refused_line(std::string_view reason);
std::string closing_line(std::string_view reason);

// Each parses a line without its newline. Throws UsageError, which begins with `origin`, for a line that is no JSON
// object of the form, has a key that is not known, or breaks a limit.
Request parse_request(std::string_view line, const std::string& origin);
Answer parse_answer(std::string_view line, const std::string& origin);

}  // namespace molen::daemon
