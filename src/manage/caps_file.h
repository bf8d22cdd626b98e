// The file of the caps of a site (docs/formats/caps.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/units.h"

namespace molen::manage {

// A program that is run when something happens to a cap.
struct Script {
  fs::path program;
  Seconds limit{60};  // then it and what it started are killed
};

// The keys that both kinds of cap have.
struct CapOfNodes {
  std::string name;
  std::vector<std::string> nodes;  // patterns of names, as fnmatch(3) takes them
  Watts node_most{0};              // that a node counts with whose power nothing has ever told
  std::optional<Script> script;
  // Returns whether the cap is one of this node's.
  bool has(const std::string& node) const;
  // Returns the names in `nodes` that are no patterns: nodes that count also before they send anything.
  std::vector<std::string> named() const;
};

struct PowerCap : CapOfNodes {
  enum class Kind { kSoft, kHard };
  Watts power{0};
  Kind kind = Kind::kSoft;
  double lift_at = 0.8;  // the part of the cap below which a soft one lifts its limits
};
const char* name_of(PowerCap::Kind kind);  // "soft", "hard"

struct EnergyCap : CapOfNodes {
  enum class Every { kDay, kWeek, kMonth, kSeconds };
  Joules energy{0};
  Every every = Every::kMonth;
  double every_s = 0;                    // kSeconds
  std::vector<int> warn_at{85, 90, 95};  // percent of the energy, ascending
};
// Returns the period, in UTC, in which a time lies: {begin, end} in seconds since 1970. Weeks begin on Monday, and
// periods of seconds are counted from 1970.
std::pair<double, double> period_of(const EnergyCap& cap, double time_s);

struct Caps {
  Seconds period{60};                 // between two looks
  Seconds hold{300};                  // for which a node keeps a limit that is not renewed
  Seconds stale_after{180};           // after which a reading is only the last known one
  Seconds forget_after{7 * 86400.0};  // after which a node that sends nothing counts no more, unless a cap names it
  std::vector<PowerCap> power;
  std::vector<EnergyCap> energy;
};

// Throws UsageError that names origin, line and key for anything that is no such file.
Caps parse_caps(std::string_view text, const std::string& origin);
// Also refuses scripts that cannot be run, or that another user could change.
Caps read_caps(const fs::path& file);

}  // namespace molen::manage
