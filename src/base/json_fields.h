// Reads JSON objects from outside: each getter checks type and range and names origin and key in its error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/suggest.h"

namespace molen {

class JsonFields {
 public:
  JsonFields(const Json& object, std::string origin) : object_(object), origin_(std::move(origin)) {
    if (!object.is_object()) throw UsageError("{}: must be a JSON object", origin_);
  }
  const std::string& origin() const { return origin_; }

  // Refuses a key that is not in `known`, and suggests the nearest known key.
  void require_known(std::span<const std::string> known) const {
    for (const auto& [key, value] : object_.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw UsageError("{}: unknown key '{}'{}", origin_, key, did_you_mean(key, known));
  }

  // Returns null when the key is absent or its value is null.
  const Json* find(std::string_view key) const {
    const auto found = object_.find(std::string(key));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> fallback = std::nullopt) const {
    const Json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))) {
      throw wrong(key, "a whole number", value);
    }
    return value->get<std::int64_t>();
  }
  double number(std::string_view key, std::optional<double> fallback = std::nullopt) const {
    const Json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_number() || !std::isfinite(value->get<double>())) throw wrong(key, "a number", value);
    return value->get<double>();
  }
  bool boolean(std::string_view key, std::optional<bool> fallback = std::nullopt) const {
    const Json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_boolean()) throw wrong(key, "true or false", value);
    return value->get<bool>();
  }
  std::string text(std::string_view key, std::optional<std::string> fallback = std::nullopt) const {
    const Json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_string()) throw wrong(key, "a string", value);
    return value->get<std::string>();
  }

 private:
  UsageError wrong(std::string_view key, std::string_view kind, const Json* value) const {
    if (!value) return UsageError("{}: '{}' is missing", origin_, key);
    return UsageError("{}: '{}' must be {}, is {}", origin_, key, kind,
                      value->dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60));
  }

  const Json& object_;
  std::string origin_;
};

}  // namespace molen
