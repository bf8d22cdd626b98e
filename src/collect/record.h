// The records of energy that a node sends to the collector of a site, and the limits that each of them keeps. Whoever
// stores a record relies on these limits: its texts are UTF-8 without control characters, and its numbers are finite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "energy/meter.h"

namespace molen::collect {

inline constexpr std::size_t kMostRecords = 512;    // periods and events of a batch, together
inline constexpr std::size_t kMostNameBytes = 128;  // node, session, scope, meter, job, step, user, kind
inline constexpr std::size_t kMostTextBytes = 512;  // a reason, the text of an event
inline constexpr double kMostWatts = 1e6;           // no scope of one node takes more; a value beyond it is an error
inline constexpr double kLongestPeriodS = 31 * 86400.0;
inline constexpr double kLatestTimeS = 253402300799;  // 9999-12-31T23:59:59Z
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 53;

// The energy of one scope of a node between two times.
struct Period {
  std::string scope;                              // as energy/scope.h names it
  double start_s = 0, end_s = 0;                  // seconds since 1970-01-01 UTC
  std::optional<double> joules;                   // null when there is no reading
  std::string reason;                             // why there is none; empty when there is one
  std::string meter;                              // as MeterInfo::name has it
  energy::Source source = energy::Source::kNone;  // kNone when there are no joules
  bool counted = false;                           // part of the sum over the scopes of the node
  std::string job, step, user;                    // of the batch system; empty when not known
  bool operator==(const Period&) const = default;
};

struct Event {
  double time_s = 0;       // since 1970-01-01 UTC
  std::string kind;        // "start", "stop", "dropped", "clock"
  std::string text;        // for a person; may be empty
  std::int64_t count = 0;  // batches that were dropped, for example
  bool operator==(const Event&) const = default;
};

// The records that are stored together or not at all. Node, session and number identify a batch, so that one that is
// sent twice counts once. Within a session, numbers begin at 1 and increase; some may be missing.
struct Batch {
  std::string node;
  std::string session;  // of one start of a sender; no two sessions of a node have the same
  std::int64_t seq = 0;
  std::vector<Period> periods;
  std::vector<Event> events;
  bool operator==(const Batch&) const = default;

  std::size_t records() const { return periods.size() + events.size(); }
  // Returns the bytes of memory that the batch takes, at least.
  std::size_t bytes() const;
};

// Returns why a record breaks the limits above; "" when it keeps them.
std::string wrong_with(const Period& period);
std::string wrong_with(const Event& event);
// Returns why a batch breaks them, its records included.
std::string wrong_with(const Batch& batch);

// Returns whether a text is a name: 1 to kMostNameBytes printable ASCII characters without spaces.
bool is_name(std::string_view text);
// Returns whether a text is UTF-8 without control characters and has at most kMostTextBytes.
bool is_text(std::string_view text);
// Returns the text with each control character replaced by a space, ill-formed UTF-8 by U+FFFD, and cut to
// kMostTextBytes between two characters.
std::string as_text(std::string_view text);
// Returns the name with each character that no name may have replaced by '_', cut to kMostNameBytes; "-" for "".
std::string as_name(std::string_view text);

// Returns 128 random bits in hexadecimal, for a session. Throws IoError if the system has none.
std::string new_session();

}  // namespace molen::collect
