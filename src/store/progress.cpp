#include "store/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace molen::store {
namespace {

constexpr double kRewriteSeconds = 0.1, kLogSeconds = 60.0;

}  // namespace

std::string progress_text(std::string_view verb, std::string_view stage, double share, std::string_view doing,
                          std::optional<double> eta_s, bool bar, int columns) {
  const std::string head = fmt::format("{} {}{} {:.0f}%", verb, stage, bar ? " " + progress_bar(share) : ":",
                                       100.0 * std::clamp(share, 0.0, 1.0)),
                    tail = eta_s ? " | eta " + duration(*eta_s) : "";
  const int room = columns - static_cast<int>(head.size() + tail.size()) - 3;
  std::string middle(doing);
  if (static_cast<int>(middle.size()) > room)
    middle = room > 8 ? middle.substr(0, static_cast<std::size_t>(room) - 3) + "..." : "";
  return head + (middle.empty() ? "" : " | " + middle) + tail;
}

Progress::Progress(std::string verb, const ProgressPlace& place, std::function<double()> clock)
    : verb_(std::move(verb)),
      place_(place),
      clock_(std::move(clock)),
      live_(place.live ? place.live : place.log, place.live != nullptr) {}

void Progress::at(std::string_view stage, double share, std::string_view doing) {
  const double time = clock_();
  if (stage != stage_) {
    stage_ = stage;
    begun_ = time;
    first_share_ = share;
    // A log mentions a stage only after a minute.
    said_ = place_.live ? std::nullopt : std::optional(time);
  }
  if (said_ && time - *said_ < (place_.live ? kRewriteSeconds : kLogSeconds)) return;
  said_ = time;
  const double done = share - first_share_;
  std::optional<double> eta;
  if (done > 0 && time > begun_) eta = (time - begun_) * std::max(0.0, 1.0 - share) / done;
  const std::string text = progress_text(verb_, stage_, share, doing, eta, place_.live != nullptr,
                                         place_.live ? place_.columns : kLogColumns);
  if (place_.live)
    live_.show(text);
  else
    live_.note(text);
}

void Progress::result(const std::string& line) {
  put(place_.results, line);
}

void Progress::note(const std::string& line) {
  put(place_.log, line);
}

// Writes above the live line if the file is its terminal. Output to another file does not disturb the line.
void Progress::put(std::FILE* file, const std::string& line) {
  if (place_.live == file) {
    live_.note(line);
    return;
  }
  const std::string text = line + "\n";
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace molen::store
