#include "actuate/actuator.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace molen::actuate {

const char* name_of(Kind kind) {
  return kind == Kind::kClock ? "clock" : "power limit";
}

const char* unit_of(Kind kind) {
  return kind == Kind::kClock ? "kHz" : "uW";
}

std::string quantity_text(Kind kind, std::int64_t value) {
  const auto v = static_cast<double>(value);
  return kind == Kind::kClock ? fmt::format("{:.6g} GHz", v * 1e-6) : fmt::format("{:.6g} W", v * 1e-6);
}

Actuator::Actuator(ActuatorInfo info, State original) : info_(std::move(info)), original_(std::move(original)) {
  MOLEN_CHECK(!info_.parts.empty() && info_.parts.size() == original_.size(), "{}: {} parts, {} values", info_.id,
              info_.parts.size(), original_.size());
}

std::int64_t Actuator::least() const {
  std::int64_t value = info_.parts.front().least;
  for (const Part& part : info_.parts) value = std::min(value, part.least);
  return value;
}

std::int64_t Actuator::most() const {
  if (!info_.readable) {
    std::int64_t value = 0;
    for (const Part& part : info_.parts) value = std::max(value, part.most);
    return value;
  }
  return *std::max_element(original_.begin(), original_.end());
}

Result<Done> Actuator::remember() {
  if (!info_.readable) return Done{};
  auto state = read();
  if (!state) return Failure{state.reason()};
  original_ = std::move(state).value();
  written_.clear();
  return Done{};
}

std::vector<std::int64_t> Actuator::ladder(std::size_t count) const {
  MOLEN_CHECK(count >= 2, "a ladder of {} values", count);
  std::vector<std::int64_t> all;
  if (info_.values.empty()) {
    for (std::int64_t value = most(); value >= least(); value -= std::max<std::int64_t>(info_.step, 1)) {
      all.push_back(value);
      if (all.size() > (1U << 16)) break;
    }
  } else {
    for (auto it = info_.values.rbegin(); it != info_.values.rend(); ++it)
      if (*it <= most() && *it >= least()) all.push_back(*it);
    if (all.empty() || all.front() != most()) all.insert(all.begin(), most());
  }
  if (all.size() <= count) return all;
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(all[(i * (all.size() - 1) + (count - 1) / 2) / (count - 1)]);
  return chosen;
}

Result<std::int64_t> Actuator::present() const {
  const auto state = read();
  if (!state) return Failure{state.reason()};
  return *std::max_element(state.value().begin(), state.value().end());
}

bool Actuator::same(std::int64_t a, std::int64_t b) const {
  return std::abs(a - b) <= info_.rounding;
}

bool Actuator::is_ours(std::size_t part, std::int64_t value, const std::vector<State>& written) const {
  return std::any_of(written.begin(), written.end(),
                     [&](const State& state) { return part < state.size() && same(state[part], value); });
}

std::string Actuator::label(std::size_t part) const {
  return info_.parts.size() == 1 ? fmt::format("{} of {}", info_.name, info_.scope)
                                 : fmt::format("{} of {}, {}", info_.name, info_.scope, info_.parts[part].name);
}

std::string Actuator::quantity(std::int64_t value) const {
  return !info_.readable && value == 0 ? "no limit" : quantity_text(info_.kind, value);
}

Result<State> Actuator::state_for(std::int64_t value) const {
  if (value < least() || value > most())
    return Failure{fmt::format("{} of {}: {} is outside what can be set, {} to {}{}", info_.name, info_.scope,
                               quantity_text(info_.kind, value), quantity_text(info_.kind, least()),
                               quantity_text(info_.kind, most()),
                               info_.readable ? " (molen sets no more than it found)" : "")};
  if (!info_.values.empty() && value != most() &&
      !std::binary_search(info_.values.begin(), info_.values.end(), value)) {
    const auto near = std::min_element(info_.values.begin(), info_.values.end(), [&](std::int64_t a, std::int64_t b) {
      return std::abs(a - value) < std::abs(b - value);
    });
    return Failure{fmt::format("{} of {}: {} is none of the {} values of the device; the nearest is {}", info_.name,
                               info_.scope, quantity_text(info_.kind, value), info_.values.size(),
                               quantity_text(info_.kind, *near))};
  }
  State state;
  for (std::size_t i = 0; i < info_.parts.size(); ++i) {
    const std::int64_t highest = info_.readable ? original_[i] : info_.parts[i].most;
    state.push_back(std::min(std::max(value, info_.parts[i].least), highest));
  }
  return state;
}

Result<Done> Actuator::set(std::int64_t value) {
  const auto wanted = state_for(value);
  if (!wanted) return Failure{wanted.reason()};
  return put(wanted.value());
}

Result<Done> Actuator::put(const State& wanted) {
  State before;
  if (info_.readable) {
    auto now = read();
    if (!now) return Failure{now.reason()};
    before = std::move(now).value();
    for (std::size_t i = 0; i < before.size(); ++i)
      if (!same(before[i], original_[i]) && !is_ours(i, before[i], written_))
        return Failure{fmt::format("{}: another program has set {} since; it is left so, and nothing is set", label(i),
                                   quantity(before[i]))};
  } else {
    before = written_.empty() ? original_ : written_.back();
  }
  written_.push_back(wanted);
  std::string failure;
  std::size_t done = 0;
  for (; done < wanted.size() && failure.empty(); ++done)
    if (const auto wrote = write(done, wanted[done]); !wrote) failure = wrote.reason();
  if (failure.empty() && info_.readable) {
    const auto now = read();
    if (!now) failure = now.reason();
    for (std::size_t i = 0; now && i < wanted.size() && failure.empty(); ++i)
      if (!same(now.value()[i], wanted[i]))
        failure = fmt::format("{}: {} was written, and {} is read back; the device or another program overrules it",
                              label(i), quantity(wanted[i]), quantity(now.value()[i]));
  }
  if (failure.empty()) {
    written_ = {wanted};
    return Done{};
  }
  for (std::size_t i = 0; i < done; ++i)
    if (const auto back = write(i, before[i]); !back)
      failure += fmt::format("; {} could not be put back to {}: {}", label(i), quantity(before[i]), back.reason());
  return Failure{failure};
}

Restoration Actuator::restore() {
  Restoration result = restore_to(original_, written_);
  if (result.complete()) written_.clear();
  return result;
}

Restoration Actuator::restore_to(const State& original, const std::vector<State>& written) {
  Restoration result;
  if (written.empty()) return result;
  State now = original;
  if (info_.readable) {
    auto state = read();
    if (!state) {
      result.failed = static_cast<int>(info_.parts.size());
      result.notes.push_back(state.reason());
      return result;
    }
    now = std::move(state).value();
  }
  for (std::size_t i = 0; i < original.size(); ++i) {
    if (info_.readable && now[i] == original[i]) continue;
    if (info_.readable && !is_ours(i, now[i], written)) {
      ++result.left_alone;
      result.notes.push_back(fmt::format("{}: another program has set {} since; it is left so (found: {})", label(i),
                                         quantity(now[i]), quantity(original[i])));
    } else if (const auto wrote = write(i, original[i]); !wrote) {
      ++result.failed;
      result.notes.push_back(fmt::format("{}: {} could not be put back to {}: {}", label(i), quantity(now[i]),
                                         quantity(original[i]), wrote.reason()));
    } else {
      ++result.restored;
    }
  }
  return result;
}

}  // namespace molen::actuate
