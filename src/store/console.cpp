#include "store/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/units.h"

namespace molen::store {
namespace {

struct Field {
  std::string text;
  int need;            // the field with the largest goes first where the line is too long
  bool alarm = false;  // a value that must not be overlooked
};

constexpr std::string_view kSeparator = " | ";

std::string number(std::optional<double> value, const char* format) {
  return value && std::isfinite(*value) ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string memory(const ConsoleStep& s) {
  const auto show = [](std::optional<std::int64_t> bytes) { return bytes ? human(Bytes(*bytes)) : std::string("-"); };
  return fmt::format("mem {}/{}", show(s.memory_peak), show(s.memory_planned));
}

std::string data_wait(const ConsoleStep& s) {
  const double share = s.step_s > 0 ? 100 * s.data_wait_s / s.step_s : NAN;
  return std::isfinite(share) ? fmt::format("data {:.1f}%", share) : "data -";
}

// A rate that is not finite (a step of no duration) was not measured.
std::string count(double value) {
  return std::isfinite(value) ? human_count(value) : "-";
}

// "scale 65536", or that the step was skipped at that scale.
Field scale_of(const ConsoleStep& s) {
  if (!s.skipped) return {fmt::format("scale {:g}", *s.loss_scale), 10};
  return {
      fmt::format("skipped: gradient overflows at scale {:g}, {} so far", *s.loss_scale, s.skipped_steps.value_or(0)),
      2, true};
}

std::vector<Field> fields_of(const ConsoleStep& s) {
  std::vector<Field> fields;
  fields.push_back({s.steps > 0 ? fmt::format("step {}/{}", s.step, s.steps) : fmt::format("step {}", s.step), 0});
  fields.push_back({fmt::format("loss {:.4f}", s.loss), 1, !std::isfinite(s.loss)});
  fields.push_back({fmt::format("gnorm {:.3f}", s.grad_norm), 8, !std::isfinite(s.grad_norm)});
  fields.push_back({fmt::format("lr {:.2e}", s.lr), 10});
  if (s.loss_scale) fields.push_back(scale_of(s));
  fields.push_back({fmt::format("{} tok", count(static_cast<double>(s.tokens_total))), 12});
  fields.push_back({std::isfinite(s.step_s) ? human(Seconds(s.step_s)) : "-", 11});
  fields.push_back({fmt::format("{} tok/s", count(s.tokens_per_s)), 2});
  fields.push_back({number(s.tflops, "{:.2f}") + " TFLOP/s", 6});
  fields.push_back({(s.flops_formula.empty() ? "MFU " : "MFU(" + s.flops_formula + ") ") +
                        number(s.mfu ? std::optional(*s.mfu * 100) : std::nullopt, "{:.1f}%"),
                    4});
  fields.push_back({memory(s), 7});
  fields.push_back({data_wait(s), 9});
  fields.push_back({number(s.j_per_token, s.energy_partial ? "~{:.3g}" : "{:.3g}") + " J/tok", 5});
  fields.push_back({number(s.watts, s.energy_partial ? "~{:.0f}" : "{:.0f}") + " W", 13});
  fields.push_back({"eta " + (s.eta_s ? duration(*s.eta_s) : std::string("-")), 3});
  return fields;
}

int width_of(const std::vector<Field>& fields) {
  std::size_t width = fields.empty() ? 0 : (fields.size() - 1) * kSeparator.size();
  for (const Field& field : fields) width += field.text.size();
  return static_cast<int>(width);
}

// fmt::print would throw where the pipe is closed; what cannot be shown is not worth a run.
void put(std::FILE* file, const std::string& text) {
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

// Blanks over what remains of a longer line before it: works where the terminal knows no escape sequence.
std::string over(const std::string& old_line, const std::string& line) {
  const int rest = std::max(visible_columns(old_line) - visible_columns(line), 0);
  return "\r" + line + std::string(static_cast<std::size_t>(rest), ' ');
}

}  // namespace

ConsoleStyle console_style(const char* no_color, const char* term, bool terminal, int columns) {
  const bool refused = no_color != nullptr && *no_color != '\0';
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return {terminal && !refused && !dumb, terminal ? std::max(columns, 0) : 0};
}

std::string duration(double seconds) {
  if (!(seconds >= 0) || !(seconds < 1e12)) return "-";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const auto minutes = total / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return fmt::format("{} d {:02}:{:02}", days, hours % 24, minutes % 60);
  if (hours > 0) return fmt::format("{:02}:{:02}:{:02}", hours, minutes % 60, total % 60);
  return fmt::format("{:02}:{:02}", minutes, total % 60);
}

int visible_columns(std::string_view line) {
  int columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {  // ESC [ ... letter
      while (i < line.size() && line[i] != 'm') ++i;
    } else {
      ++columns;
    }
  }
  return columns;
}

std::string step_line(const ConsoleStep& step, const ConsoleStyle& style) {
  std::vector<Field> fields = fields_of(step);
  while (style.width > 0 && fields.size() > 1 && width_of(fields) > style.width)
    fields.erase(
        std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.need < b.need; }));
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += kSeparator;
    const std::string text = style.width > 0 && fields.size() == 1
                                 ? field.text.substr(0, static_cast<std::size_t>(style.width))
                                 : field.text;
    if (style.color && field.alarm)
      line += "\x1b[1;31m" + text + "\x1b[0m";
    else if (style.color && field.need == 1)
      line += "\x1b[1m" + text + "\x1b[0m";
    else
      line += text;
  }
  return line;
}

LiveLine::LiveLine(std::FILE* file, bool terminal, std::int64_t keep_every)
    : file_(file), terminal_(terminal), keep_every_(std::max<std::int64_t>(keep_every, 1)) {}

LiveLine::~LiveLine() {
  finish();
}

void LiveLine::step(std::int64_t step, const std::string& line) {
  if (!terminal_) return put(file_, line + "\n");
  const bool keep = step % keep_every_ == 0;
  put(file_, over(live_, line) + (keep ? "\n" : ""));
  live_ = keep ? std::string() : line;
}

void LiveLine::note(const std::string& line) {
  put(file_, live_.empty() ? line + "\n" : over(live_, line) + "\n" + live_);
}

void LiveLine::finish() {
  if (live_.empty()) return;
  put(file_, "\n");
  live_.clear();
}

}  // namespace molen::store
