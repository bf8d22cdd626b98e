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
  int need;            // when the line is too long, the field with the largest value is dropped first
  bool alarm = false;  // a value that must not be overlooked
};

constexpr std::string_view kSeparator = " | ";

bool known(std::optional<double> value) {
  return value && std::isfinite(*value);
}

void add_loss(const ConsoleStep& s, std::vector<Field>& fields) {
  fields.push_back({fmt::format("loss {:.4f}", s.loss), 1, !std::isfinite(s.loss)});
}
void add_mfu(const ConsoleStep& s, std::vector<Field>& fields) {
  const std::string name = s.flops_formula.empty() ? "MFU" : "MFU(" + s.flops_formula + ")";
  if (known(s.mfu)) fields.push_back({fmt::format("{} {:.1f}%", name, *s.mfu * 100), 4});
}
// Three digits in the largest unit of which there is one at least: "12.3 kWh", "4.56 MWh".
std::string scaled(double value, const std::vector<std::pair<double, const char*>>& units) {
  for (const auto& [unit, name] : units)
    if (value >= 0.9995 * unit || unit == units.back().first) return fmt::format("{:.3g} {}", value / unit, name);
  return "";
}
// Adds the energy per token of the step, and the energy and emissions of the run so far.
void add_energy(const ConsoleStep& s, std::vector<Field>& fields) {
  const char* partial = s.energy_partial ? "~" : "";
  if (known(s.j_per_token)) fields.push_back({fmt::format("{}{:.3g} J/tok", partial, *s.j_per_token), 5});
  if (!known(s.kwh_total)) return;
  const auto both = [](double kwh, const std::optional<double>& kg) {
    return energy_text(kwh) + (known(kg) ? " " + emissions_text(*kg) : "");
  };
  fields.push_back({partial + both(*s.kwh_total, s.kg_co2e_total), 6});
  if (known(s.kwh_at_end)) fields.push_back({both(*s.kwh_at_end, s.kg_co2e_at_end) + " at the end", 7});
}
void add_eta(const ConsoleStep& s, std::vector<Field>& fields) {
  if (known(s.eta_s)) fields.push_back({"eta " + duration(*s.eta_s), 3});
}

// Writes a rate. One that is not finite (the step took no time) counts as not measured.
std::string count(double value) {
  return std::isfinite(value) ? human_count(value) : "-";
}

// Returns "scale 65536", or a note that the step was skipped at that scale.
Field scale_of(const ConsoleStep& s) {
  if (!s.skipped) return {fmt::format("scale {:g}", *s.loss_scale), 10};
  return {
      fmt::format("skipped: gradient overflows at scale {:g}, {} so far", *s.loss_scale, s.skipped_steps.value_or(0)),
      2, true};
}

std::vector<Field> fields_of(const ConsoleStep& s) {
  std::vector<Field> fields;
  fields.push_back({s.steps > 0 ? fmt::format("step {}/{}", s.step, s.steps) : fmt::format("step {}", s.step), 0});
  add_loss(s, fields);
  fields.push_back({fmt::format("gnorm {:.3f}", s.grad_norm), 8, !std::isfinite(s.grad_norm)});
  fields.push_back({fmt::format("lr {:.2e}", s.lr), 10});
  if (s.loss_scale) fields.push_back(scale_of(s));
  fields.push_back({fmt::format("{} tok", count(static_cast<double>(s.tokens_total))), 12});
  fields.push_back({std::isfinite(s.step_s) ? human(Seconds(s.step_s)) : "-", 11});
  fields.push_back({fmt::format("{} tok/s", count(s.tokens_per_s)), 2});
  if (known(s.tflops)) fields.push_back({fmt::format("{:.2f} TFLOP/s", *s.tflops), 11});
  add_mfu(s, fields);
  if (s.memory_peak && s.memory_planned && *s.memory_peak != *s.memory_planned)
    fields.push_back(
        {fmt::format("mem {} of {} planned", human(Bytes(*s.memory_peak)), human(Bytes(*s.memory_planned))), 7});
  if (const double share = 100 * s.data_wait_s / s.step_s; std::isfinite(share) && share >= 0.1)
    fields.push_back({fmt::format("data {:.1f}%", share), 9});
  add_energy(s, fields);
  if (known(s.watts)) fields.push_back({fmt::format("{}{:.0f} W", s.energy_partial ? "~" : "", *s.watts), 13});
  if (known(s.modelled_watts)) fields.push_back({fmt::format("model {:.0f} W", *s.modelled_watts), 8});
  add_eta(s, fields);
  return fields;
}

std::vector<Field> progress_fields(const ConsoleStep& s) {
  std::vector<Field> fields;
  std::string steps = s.steps > 0 ? fmt::format("{}/{}", s.step, s.steps) : fmt::format("step {}", s.step);
  if (s.steps > 0) steps = progress_bar(static_cast<double>(s.step) / static_cast<double>(s.steps)) + " " + steps;
  fields.push_back({std::move(steps), 0});
  add_loss(s, fields);
  if (s.loss_scale && s.skipped) fields.push_back(scale_of(s));
  fields.push_back({fmt::format("{} tok/s", count(s.tokens_per_s)), 2});
  add_mfu(s, fields);
  add_energy(s, fields);
  add_eta(s, fields);
  return fields;
}

int width_of(const std::vector<Field>& fields) {
  std::size_t width = fields.empty() ? 0 : (fields.size() - 1) * kSeparator.size();
  for (const Field& field : fields) width += field.text.size();
  return static_cast<int>(width);
}

// fmt::print would throw when the pipe is closed; lost output must not end a run.
void put(std::FILE* file, const std::string& text) {
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

// Appends blanks that cover the rest of a longer previous line. This also works on a terminal without escape sequences.
std::string over(const std::string& old_line, const std::string& line) {
  const int rest = std::max(visible_columns(old_line) - visible_columns(line), 0);
  return "\r" + line + std::string(static_cast<std::size_t>(rest), ' ');
}

}  // namespace

ConsoleStyle console_style(const char* no_color, const char* term, bool terminal, int columns) {
  const bool refused = no_color != nullptr && *no_color != '\0';
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  // Leaves the last column free: a line that fills it may move the cursor to the next line.
  const int fits = columns > 1 ? std::min(columns - 1, kTerminalColumns) : kTerminalColumns;
  return {terminal && !refused && !dumb, terminal ? fits : kLogColumns};
}

std::string energy_text(double kwh) {
  return scaled(kwh, {{1e6, "GWh"}, {1e3, "MWh"}, {1.0, "kWh"}, {1e-3, "Wh"}});
}

std::string emissions_text(double kg_co2e) {
  return scaled(kg_co2e, {{1e3, "t"}, {1.0, "kg"}, {1e-3, "g"}}) + " CO2e";
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

namespace {

// Joins whole fields; drops the least needed until the line fits.
std::string line_of(std::vector<Field> fields, const ConsoleStyle& style) {
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

}  // namespace

std::string step_line(const ConsoleStep& step, const ConsoleStyle& style) {
  return line_of(fields_of(step), style);
}

std::string progress_line(const ConsoleStep& step, const ConsoleStyle& style) {
  return line_of(progress_fields(step), style);
}

std::string progress_bar(double done) {
  constexpr int kWidth = 16;
  const int full = std::isfinite(done) ? std::clamp(static_cast<int>(done * kWidth), 0, kWidth) : 0;
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kWidth - full), '-') + "]";
}

std::string wrapped(std::string_view text, int width) {
  constexpr std::string_view kIndent = "    ";
  if (width <= 0) return std::string(text);
  std::string all;
  std::size_t line = 0;  // start of the last line in `all`
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const bool begins = all.size() == line || std::string_view(all).substr(line) == kIndent;
    if (!begins && all.size() - line + 1 + word.size() > static_cast<std::size_t>(width)) {
      all += '\n';
      line = all.size();
      all += kIndent;
    } else if (at > 0 && text[at - 1] == ' ') {
      all += ' ';
    }
    all += word;
    if (end < text.size() && text[end] == '\n') {
      all += '\n';
      line = all.size();
    }
    at = end + 1;
  }
  return all;
}

LiveLine::LiveLine(std::FILE* file, bool terminal) : file_(file), terminal_(terminal) {}

LiveLine::~LiveLine() {
  finish();
}

void LiveLine::show(const std::string& line) {
  if (!terminal_) return;
  put(file_, over(live_, line));
  live_ = line;
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
