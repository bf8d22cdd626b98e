#include "base/clock.h"

#include <fmt/format.h>

#include <ctime>
#include <optional>

#include "base/utf8.h"

namespace molen {
namespace {

// Takes parts of a time from the front of a text.
class TimeReader {
 public:
  explicit TimeReader(std::string_view text) : rest_(text) {}

  // Takes a number of exactly so many digits from `low` to `high`.
  std::optional<int> number(std::size_t digits, int low, int high) {
    int value = 0;
    if (rest_.size() < digits) return std::nullopt;
    for (const char c : rest_.substr(0, digits)) {
      if (c < '0' || c > '9') return std::nullopt;
      value = 10 * value + (c - '0');
    }
    if (value < low || value > high) return std::nullopt;
    rest_.remove_prefix(digits);
    return value;
  }
  // Takes one of these letters.
  std::optional<char> letter(std::string_view letters) {
    if (rest_.empty() || letters.find(rest_.front()) == std::string_view::npos) return std::nullopt;
    const char taken = rest_.front();
    rest_.remove_prefix(1);
    return taken;
  }
  // Takes a point and digits after it; returns 0 without a point, and nothing for a point without digits.
  std::optional<double> fraction() {
    if (!letter(".")) return 0.0;
    double value = 0.0, place = 0.1;
    bool any = false;
    for (; !rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9'; rest_.remove_prefix(1), place /= 10.0) {
      value += place * (rest_.front() - '0');
      any = true;
    }
    return any ? std::optional(value) : std::nullopt;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Takes "-11-21" after a year, and returns the days since 1970.
std::optional<int> days_of(TimeReader& from, int year) {
  if (!from.letter("-")) return std::nullopt;
  const auto month = from.number(2, 1, 12);
  if (!month || !from.letter("-")) return std::nullopt;
  const auto day = from.number(2, 1, 31);
  if (!day) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  return static_cast<int>(std::chrono::sys_days(date).time_since_epoch().count());
}

// Takes "04:02", with seconds if there are any, and returns the seconds of the day.
std::optional<double> seconds_of_day(TimeReader& from) {
  const auto hour = from.number(2, 0, 23);
  if (!hour || !from.letter(":")) return std::nullopt;
  const auto minute = from.number(2, 0, 59);
  if (!minute) return std::nullopt;
  double seconds = 3600.0 * *hour + 60.0 * *minute;
  if (!from.letter(":")) return seconds;
  const auto whole = from.number(2, 0, 59);
  if (!whole) return std::nullopt;
  const auto part = from.fraction();
  return part ? std::optional(seconds + *whole + *part) : std::nullopt;
}

// Takes "Z", "+01:00" or nothing, and returns the seconds by which the time is ahead of UTC.
std::optional<double> offset_of(TimeReader& from) {
  if (from.letter("Z")) return 0.0;
  const auto sign = from.letter("+-");
  if (!sign) return 0.0;
  const auto hours = from.number(2, 0, 23);
  if (!hours || !from.letter(":")) return std::nullopt;
  const auto minutes = from.number(2, 0, 59);
  if (!minutes) return std::nullopt;
  return (*sign == '-' ? -60.0 : 60.0) * (60.0 * *hours + *minutes);
}

}  // namespace

Result<double> parse_time(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  const auto wrong = [&] {
    return Failure{
        fmt::format("'{}' is not a time; expected one such as 2026-11-21, 2026-11-21T04:02Z or 2026-11-21 04:02:00",
                    printable(text.substr(0, kLongest)))};
  };
  TimeReader reader(text);
  const auto year = reader.number(4, 1970, 9999);
  if (!year || text.size() > kLongest) return wrong();
  const auto days = days_of(reader, *year);
  if (!days) return wrong();
  const double midnight = 86400.0 * *days;
  if (reader.at_end()) return midnight;
  if (!reader.letter("T ")) return wrong();
  const auto seconds = seconds_of_day(reader);
  if (!seconds) return wrong();
  const auto offset = offset_of(reader);
  if (!offset || !reader.at_end()) return wrong();
  return midnight + *seconds - *offset;
}

std::string utc_timestamp(double wall) {
  constexpr double kYear10000 = 253402300800.0;
  if (!(wall >= 0.0 && wall < kYear10000)) return "(no date)";
  const auto seconds = static_cast<std::time_t>(wall);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace molen
