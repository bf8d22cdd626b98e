#include "collect/record.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace molen::collect {
namespace {

bool is_name_character(char c) {
  return c > ' ' && c < '\x7f';
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == '\x7f';
}

bool is_time(double seconds) {
  return std::isfinite(seconds) && seconds >= 0.0 && seconds <= kLatestTimeS;
}

std::string wrong_name(const char* key, const std::string& name) {
  if (is_name(name)) return "";
  return fmt::format("'{}' must be 1 to {} printable ASCII characters without spaces", key, kMostNameBytes);
}

std::string wrong_text(const char* key, const std::string& text) {
  if (is_text(text)) return "";
  return fmt::format("'{}' must be at most {} bytes of UTF-8 without control characters", key, kMostTextBytes);
}

std::string wrong_joules(const Period& p) {
  if (!p.joules) {
    if (p.reason.empty()) return "'reason' is missing: a period without joules says why";
    if (p.source != energy::Source::kNone) return "'source' must be none where there are no joules";
    return "";
  }
  if (!p.reason.empty()) return "'reason' is only for a period without joules";
  if (p.source == energy::Source::kNone) return "'source' must not be none where there are joules";
  if (!std::isfinite(*p.joules) || *p.joules < 0.0) return "'joules' must be 0 or more";
  if (*p.joules > kMostWatts * (p.end_s - p.start_s))
    return fmt::format("'joules' is {:g} in {:g} s: more than {:g} W, which no scope of a node takes", *p.joules,
                       p.end_s - p.start_s, kMostWatts);
  return "";
}

}  // namespace

std::size_t Batch::bytes() const {
  std::size_t sum = sizeof(Batch) + node.size() + session.size();
  for (const Period& p : periods)
    sum += sizeof(Period) + p.scope.size() + p.reason.size() + p.meter.size() + p.job.size() + p.step.size() +
           p.user.size();
  for (const Event& e : events) sum += sizeof(Event) + e.kind.size() + e.text.size();
  return sum;
}

std::string wrong_with(const Period& p) {
  if (std::string wrong = wrong_name("scope", p.scope); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_name("meter", p.meter); !wrong.empty()) return wrong;
  if (!is_time(p.start_s)) return "'start' must be a time from 1970 to 9999, in seconds since 1970";
  if (!is_time(p.end_s)) return "'end' must be a time from 1970 to 9999, in seconds since 1970";
  if (!(p.end_s > p.start_s)) return "'end' must be after 'start'";
  if (p.end_s - p.start_s > kLongestPeriodS)
    return fmt::format("the period has more than {:g} days", kLongestPeriodS / 86400.0);
  if (std::string wrong = wrong_joules(p); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_text("reason", p.reason); !wrong.empty()) return wrong;
  for (const auto& [key, name] : {std::pair("job", &p.job), std::pair("step", &p.step), std::pair("user", &p.user)})
    if (std::string wrong = wrong_name(key, *name); !name->empty() && !wrong.empty()) return wrong;
  return "";
}

std::string wrong_with(const Event& e) {
  if (std::string wrong = wrong_name("kind", e.kind); !wrong.empty()) return wrong;
  if (!is_time(e.time_s)) return "'time' must be a time from 1970 to 9999, in seconds since 1970";
  if (e.count < 0 || e.count > kMostCount) return "'count' must be 0 to 2^53";
  return wrong_text("text", e.text);
}

std::string wrong_with(const Batch& batch) {
  if (std::string wrong = wrong_name("node", batch.node); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_name("session", batch.session); !wrong.empty()) return wrong;
  if (batch.seq < 1 || batch.seq > kMostCount) return "'seq' must be 1 to 2^53";
  if (batch.records() == 0) return "the batch has neither periods nor events";
  if (batch.records() > kMostRecords)
    return fmt::format("the batch has {} records; {} are the most", batch.records(), kMostRecords);
  for (std::size_t i = 0; i < batch.periods.size(); ++i)
    if (const std::string wrong = wrong_with(batch.periods[i]); !wrong.empty())
      return fmt::format("periods[{}]: {}", i, wrong);
  for (std::size_t i = 0; i < batch.events.size(); ++i)
    if (const std::string wrong = wrong_with(batch.events[i]); !wrong.empty())
      return fmt::format("events[{}]: {}", i, wrong);
  return "";
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMostNameBytes && std::ranges::all_of(text, is_name_character);
}

bool is_text(std::string_view text) {
  return text.size() <= kMostTextBytes && std::ranges::none_of(text, is_control) && valid_utf8(text);
}

std::string as_text(std::string_view text) {
  // A replaced byte becomes three, so cutting the input first bounds the work.
  std::string clean = replace_invalid_utf8(text.substr(0, 4 * kMostTextBytes));
  std::ranges::replace_if(clean, is_control, ' ');
  if (clean.size() <= kMostTextBytes) return clean;
  std::size_t end = kMostTextBytes;
  while (end > 0 && (static_cast<unsigned char>(clean[end]) & 0xC0) == 0x80) --end;  // within a character
  clean.resize(end);
  return clean;
}

std::string as_name(std::string_view text) {
  if (text.empty()) return "-";
  std::string name(text.substr(0, kMostNameBytes));
  std::ranges::replace_if(
      name, [](char c) { return !is_name_character(c); }, '_');
  return name;
}

std::string new_session() {
  unsigned char bits[16];
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw IoError(errno, "the system returned no random bytes");
  std::string text;
  for (const unsigned char b : bits) text += fmt::format("{:02x}", b);
  return text;
}

}  // namespace molen::collect
