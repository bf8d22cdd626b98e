// Name, model, layout, machine and the final figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

std::string head_row(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<div><dt>" + name + "<dd>" + escape(value) + "</div>";
}

std::string tile(const std::string& name, const std::string& value) {
  return value.empty() ? "<div><b class=none>not measured</b><span>" + escape(name) + "</span></div>"
                       : "<div><b>" + escape(value) + "</b><span>" + escape(name) + "</span></div>";
}

std::string about(const RunData& run) {
  const Dates when = dates_of(run);
  std::string host = text_of(run.environment, "host");
  for (const char* key : {"cpu", "gpu", "device", "system"})
    if (const std::string v = text_of(run.environment, key); !v.empty()) host += (host.empty() ? "" : ", ") + v;
  if (const std::string cores = text_of(run.environment, "cores"); !cores.empty()) host += ", " + cores + " cores";
  std::string peak;
  if (run.environment.is_object() && run.environment.contains("device_peak"))
    peak = text_of(run.environment["device_peak"], "source");
  std::string software;
  for (const char* key : {"molen", "git", "libtorch", "compiler"})
    if (const std::string v = text_of(run.environment, key); !v.empty())
      software += fmt::format("{}{} {}", software.empty() ? "" : ", ", key, v);
  std::string dates;
  if (std::isfinite(when.first)) dates = utc_timestamp(when.first) + " to " + utc_timestamp(when.last);
  if (when.starts > 1) dates += fmt::format(", {} attempts", when.starts);
  return "<dl class=about>" + head_row("Model", model_of(run)) + head_row("Layout", layout_of(run)) +
         head_row("Host", host) + head_row("Peak of a device", peak) + head_row("Software", software) +
         head_row("Dates", dates) + head_row("Ended", ending_of(run).text) + "</dl>";
}

std::string tiles(const RunData& run) {
  const auto& steps = run.metrics.steps;
  std::string s = "<div class=tiles>";
  if (steps.empty()) return s + tile("steps", "0") + "</div>";
  std::vector<double> rates, seconds, mfu;
  double total_s = 0;
  std::int64_t peak = 0;
  for (const auto& m : steps) {
    rates.push_back(m.tokens_per_s);
    seconds.push_back(m.step_s);
    if (m.mfu) mfu.push_back(*m.mfu);
    if (std::isfinite(m.step_s)) total_s += m.step_s;
    peak = std::max(peak, m.memory_peak_bytes);
  }
  const auto& last = steps.back();
  const auto finite = [](double v, const char* format) {
    return std::isfinite(v) ? fmt::format(fmt::runtime(format), v) : std::string();
  };
  s += tile("steps", std::to_string(last.step)) + tile("tokens", human_count(static_cast<double>(last.tokens_total)));
  s += tile("last loss", std::isfinite(last.loss) ? fmt::format("{:.4f}", last.loss) : "not finite");
  if (!run.validations.empty()) {
    const Validation& v = run.validations.back();
    s += tile("held-out loss", finite(v.loss, "{:.4f}"));
    for (const auto& [language, bits] : v.bits_per_byte)
      s += tile("bits per byte, " + language, finite(bits, "{:.3f}"));
  }
  s += tile("tokens/s, median", std::isfinite(median(rates)) ? human_count(median(rates)) : "");
  s += tile("step, median", std::isfinite(median(seconds)) ? human(Seconds(median(seconds))) : "");
  if (!mfu.empty())
    s += tile(last.flops_formula.empty() ? "MFU, median" : "MFU (" + last.flops_formula + "), median",
              finite(100 * median(mfu), "{:.1f}%"));
  s += tile("time in steps", human(Seconds(total_s))) +
       tile("memory of a rank, by its plan", peak > 0 ? human(Bytes(peak)) : "");
  const auto totals = energy_totals(run);
  if (totals.empty()) return s + tile("energy", "") + "</div>";
  // Scopes nest (a package includes its cores), so they are not summed.
  for (const auto& [scope, total] : totals) {
    const double wh = total.joules / 3600;
    s += tile("energy, " + scope + " (" + total.source + ")",
              wh >= 100 ? fmt::format("{:.3g} kWh", wh / 1000) : fmt::format("{:.3g} Wh", wh));
  }
  return s +
         tile("J/token, last step" + energy_left_out(run),
              last.j_per_token ? finite(*last.j_per_token, "{:.3g}") : "") +
         "</div>";
}

}  // namespace

std::string head_section(const RunData& run) {
  std::string s = "<h1>" + escape(run.path.filename().string()) + "</h1>" + about(run) + tiles(run);
  if (run.notices.empty()) return s;
  s += "<div class=notice role=note>";
  for (const std::string& n : run.notices) s += "<p>" + escape(n) + "</p>";
  return s + "</div>";
}

}  // namespace molen::serve
