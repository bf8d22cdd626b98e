#include "checkpoint/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace molen::checkpoint {
namespace {
constexpr std::string_view kStep = "step-";

// Returns whether the part of `name` before the last `mark` is a step's name and only digits follow.
bool is_numbered(std::string_view name, std::string_view mark) {
  const auto at = name.rfind(mark);
  if (at == std::string_view::npos || !step_of(name.substr(0, at))) return false;
  const std::string_view digits = name.substr(at + mark.size());
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}
}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:09d}", step);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0 || step_name(step) != name)
    return std::nullopt;
  return step;
}

std::string partial_name(std::int64_t step, std::int64_t token) {
  return fmt::format("{}{}-{}", step_name(step), kPartial, token);
}

bool is_unfinished(std::string_view name) {
  // Version 1 of the format had no tokens.
  if (name.ends_with(kPartial)) return step_of(name.substr(0, name.size() - kPartial.size())).has_value();
  return is_numbered(name, std::string(kPartial) + "-");
}

bool is_removing(std::string_view name) {
  if (!name.ends_with(kRemoving)) return false;
  const std::string_view before = name.substr(0, name.size() - kRemoving.size());
  return step_of(before) || is_unfinished(before) || replaced_name(before);
}

std::optional<std::int64_t> damaged_step(std::string_view name) {
  return is_numbered(name, kDamaged) ? step_of(name.substr(0, name.rfind(kDamaged))) : std::nullopt;
}

std::optional<std::string> replaced_name(std::string_view name) {
  if (!name.ends_with(kReplaced)) return std::nullopt;
  const std::string_view before = name.substr(0, name.size() - kReplaced.size());
  return step_of(before) ? std::optional(std::string(before)) : std::nullopt;
}

std::string rank_file(int rank) {
  return fmt::format("rank-{:05d}.safetensors", rank);
}
std::string fragment_file(int rank) {
  return fmt::format("rank-{:05d}.json", rank);
}

bool is_attachment_name(std::string_view name) {
  const auto plain = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 200 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain) &&
         name != "index.json" && name != "state.json" && !name.starts_with("rank-");
}

}  // namespace molen::checkpoint
