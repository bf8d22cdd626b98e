// Power limits that a site's manager gives to the nodes (docs/decisions/0021-energy-caps.md): what a node says that it
// can limit, and the limits that it gets for a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace molen::collect {

inline constexpr std::size_t kMostLimits = 64;     // settings of a node
inline constexpr double kLongestLimitS = 3600;     // for which a node keeps a limit that nobody renews
inline constexpr const char* kCapPrefix = "cap:";  // of the names under which a manager records events; no node has one
inline constexpr double kLeastLimitW = 1, kMostLimitW = 1e6;

// A power limit that a node can set.
struct LimitableSetting {
  std::string setting;              // the id of the setting, such as "nvml-power:GPU-8a..."
  std::string scope;                // what it limits, as energy/scope.h names it
  double least_w = 0, most_w = 0;   // what may be set
  std::optional<double> present_w;  // what is set now; absent where the device does not tell
  bool operator==(const LimitableSetting&) const = default;
};

// The power limits that a node can set.
struct Limitable {
  std::vector<LimitableSetting> settings;
  std::string problem;  // why there are none, or why they do not hold; may be empty
  bool operator==(const Limitable&) const = default;
  // Returns the bytes of memory that it takes, at least.
  std::size_t bytes() const { return 256 + settings.size() * 192 + problem.size(); }
};

struct Limit {
  std::string setting;
  double watts = 0;
  bool operator==(const Limit&) const = default;
};

// The limits of a node and for how long they hold. Without any, the node has no limit.
struct LimitOrder {
  std::vector<Limit> limits;
  double seconds = 0;
  std::string problem = {};  // why the database has none that can be read; not sent
  bool operator==(const LimitOrder&) const = default;
};

// Write the forms of the wire and of the database, and read them. Those that read throw UsageError, which begins with
// `origin`, for another form, a key that is not known, or a value beyond the limits above.
Json to_json(const Limitable& limits);  // {"settings":[...],"problem":"..."}
Limitable limitable_of(const Json& json, const std::string& origin);
Json to_json(const std::vector<Limit>& limits);  // [{"setting":"...","watts":...}]
std::vector<Limit> limits_of(const Json& json, const std::string& origin);

}  // namespace molen::collect
