// Typed reads of JSON members; each error names the document and the key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/suggest.h"

namespace molen::data {

inline std::string string_field(const Json& object, std::string_view key, std::string_view origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_string()) throw UsageError("{}: '{}' is not a string", origin, key);
  return value.get<std::string>();
}

// Reads a count: an integer in [0, 2^62].
inline std::int64_t count_field(const Json& object, std::string_view key, std::string_view origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > (std::uint64_t{1} << 62)) ||
      value.get<std::int64_t>() < 0)
    throw UsageError("{}: '{}' is not a count", origin, key);
  return value.get<std::int64_t>();
}

inline void known_fields(const Json& object, std::initializer_list<std::string_view> known, std::string_view origin) {
  if (!object.is_object()) throw UsageError("{}: not an object", origin);
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [key, value] : object.items())
    if (std::find(names.begin(), names.end(), key) == names.end())
      throw UsageError("{}: unknown key '{}'{}", origin, key, did_you_mean(key, names));
}

}  // namespace molen::data
