#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace molen {

std::string human(Bytes bytes) {
  static constexpr std::array kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes.value) : fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string human(Seconds seconds) {
  const double s = seconds.value;
  if (s < 0) return "-" + human(Seconds(-s));
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1.0) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 100.0) return fmt::format("{:.2f} s", s);
  const auto total = static_cast<std::int64_t>(std::llround(s));
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
  return fmt::format("{}d{:02}h", total / 86400, total / 3600 % 24);
}

std::string human_count(double count) {
  static constexpr std::array kNames{"", " k", " M", " B", " T"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000.0 && unit + 1 < kNames.size()) {
    count /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:g}", count) : fmt::format("{:.2f}{}", count, kNames[unit]);
}

std::string human(Flops flops) {
  static constexpr std::array kNames{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  double value = flops.value;
  std::size_t unit = 0;
  while (std::abs(value) >= 1000.0 && unit + 1 < kNames.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:g} FLOP", value) : fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

}  // namespace molen
