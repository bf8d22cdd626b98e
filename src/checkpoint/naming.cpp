#include "checkpoint/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace molen::checkpoint {
namespace {
constexpr std::string_view kStep = "step-", kPartial = ".partial", kRemoving = ".removing";

bool is_step_with(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) && step_of(name.substr(0, name.size() - suffix.size()));
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

bool is_unfinished(std::string_view name) {
  return is_step_with(name, kPartial);
}
bool is_leftover(std::string_view name) {
  return is_unfinished(name) || is_step_with(name, kRemoving);
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
