#include "program/text/text_buffers.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"

namespace molen::program::detail {
namespace {

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

std::int64_t number_of(const std::string& key, const std::string& text, std::int64_t most) {
  const auto value = whole_number(text);
  if (!value || *value > most) throw UsageError("{}={} is no number from 0 to {}", key, text, most);
  return *value;
}

Value role_of(const std::string& text) {
  if (const auto role = value_named(text)) return *role;
  std::vector<std::string> names;
  for (const ValueInfo& info : kValues) names.emplace_back(info.name);
  throw UsageError("role={} is no value{}", text, did_you_mean(text, names));
}

int unit_of(const Program& program, const std::string& text) {
  if (const int unit = program.find_unit(text); unit >= 0) return unit;
  std::vector<std::string> names;
  for (const Unit& unit : program.units) names.push_back(unit.name);
  throw UsageError("unit={}: this stage has no such unit{}", text, did_you_mean(text, names));
}

Range extent_of(const std::string& text) {
  for (const Range range : {Range::kShard, Range::kOwn})
    if (name_of(range) == text) return range;
  throw UsageError("holds={} is no part of a unit that a rank keeps: shard or own", text);
}

constexpr std::int64_t kMost = std::numeric_limits<int>::max();

}  // namespace

std::string fields_text(const Program& program, const Buffer& b) {
  std::string text = fmt::format(" role={}", name_of(b.role));
  if (b.unit >= 0) text += " unit=" + program.units.at(static_cast<std::size_t>(b.unit)).name;
  if (b.layer >= 0) text += fmt::format(" layer={}", b.layer);
  if (!b.slot.empty()) text += " slot=" + b.slot;
  if (b.portion >= 0) text += fmt::format(" piece={}", b.portion);
  if (b.copy > 0) text += fmt::format(" copy={}", b.copy);
  if (b.extent != Range::kAll) text += fmt::format(" holds={}", name_of(b.extent));
  return text;
}

void set_fields(const Program& program, std::map<std::string, std::string> fields, Buffer& buffer) {
  if (!fields.count("role")) throw UsageError("a buffer without role=VALUE");
  for (const auto& [key, text] : fields) {
    if (key == "role")
      buffer.role = role_of(text);
    else if (key == "unit")
      buffer.unit = unit_of(program, text);
    else if (key == "layer")
      buffer.layer = number_of(key, text, kMost);
    else if (key == "slot")
      buffer.slot = text;
    else if (key == "piece")
      buffer.portion = number_of(key, text, kMaxTensorChunks);
    else if (key == "copy")
      buffer.copy = static_cast<int>(number_of(key, text, kMost));
    else if (key == "holds")
      buffer.extent = extent_of(text);
    else
      throw UsageError(
          "a buffer has no field '{}'{}", key,
          did_you_mean(key, std::vector<std::string>{"role", "unit", "layer", "slot", "piece", "copy", "holds"}));
  }
  if (of_unit(buffer.role) != (buffer.unit >= 0))
    throw UsageError("role={} {}", name_of(buffer.role),
                     of_unit(buffer.role) ? "belongs to a unit: say which one with unit=NAME"
                                          : "does not belong to a unit: leave unit out");
}

}  // namespace molen::program::detail
