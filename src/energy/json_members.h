// Checked access to members of stored energy records, which come from files.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace molen::energy {

inline std::int64_t count_value(const Json& value, const std::string& key, const std::string& origin) {
  // Beyond 2^53 other JSON readers lose digits; our counts never get there.
  if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > 9007199254740992.0)
    throw UsageError("{}: {} is no count", origin, key);
  return value.get<std::int64_t>();
}

inline double amount_value(const Json& value, const std::string& key, const std::string& origin) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
    throw UsageError("{}: {} is no amount", origin, key);
  return value.get<double>();
}

inline std::int64_t count_member(const Json& json, const char* key, const std::string& origin) {
  return count_value(json_member(json, key, origin), key, origin);
}

inline double amount_member(const Json& json, const char* key, const std::string& origin) {
  return amount_value(json_member(json, key, origin), key, origin);
}

inline std::map<std::string, std::int64_t> counts_member(const Json& json, const char* key, const std::string& origin) {
  const Json& object = json_member(json, key, origin);
  if (!object.is_object()) throw UsageError("{}: {} is no object", origin, key);
  std::map<std::string, std::int64_t> counts;
  for (const auto& [name, value] : object.items()) counts[name] = count_value(value, key + ("." + name), origin);
  return counts;
}

inline std::map<std::string, double> amounts_member(const Json& json, const char* key, const std::string& origin) {
  const Json& object = json_member(json, key, origin);
  if (!object.is_object()) throw UsageError("{}: {} is no object", origin, key);
  std::map<std::string, double> amounts;
  for (const auto& [name, value] : object.items()) amounts[name] = amount_value(value, key + ("." + name), origin);
  return amounts;
}

}  // namespace molen::energy
