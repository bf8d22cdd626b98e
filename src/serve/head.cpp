// Name, model, layout, machine and the final figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

std::string row(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<div><dt>" + name + "<dd>" + escape(value) + "</div>";
}

std::string tile(const std::string& name, const std::string& value) {
  return value.empty() ? "<div><b class=none>not measured</b><span>" + escape(name) + "</span></div>"
                       : "<div><b>" + escape(value) + "</b><span>" + escape(name) + "</span></div>";
}

// "4 ranks (mpi), pipeline 2, tensor 2": what differs from one, so that the line stays short.
std::string layout_of(const RunData& run, const Json& start) {
  const auto value = [&](const char* key) {
    const auto at = run.values.find(std::string("parallel.") + key);
    return at == run.values.end() ? std::string() : at->second;
  };
  std::string text = text_of(start, "ranks", text_of(run.environment, "ranks"));
  if (text.empty()) return text;
  text += text == "1" ? " rank" : " ranks";
  if (const std::string c = text_of(start, "communicator", text_of(run.environment, "communicator")); !c.empty())
    text += " (" + c + ")";
  for (const char* key : {"pipeline", "virtual_stages", "tensor", "context", "data_replicate"})
    if (const std::string v = value(key); !v.empty() && v != "1") text += fmt::format(", {} {}", key, v);
  if (const std::string v = value("pipeline"); !v.empty() && v != "1") text += ", schedule " + value("schedule");
  if (const std::string v = value("sharding"); !v.empty()) text += ", " + v;
  if (const std::string v = value("zero"); !v.empty()) text += ", ZeRO " + v;
  if (const std::string v = value("recompute"); !v.empty() && v != "none") text += ", recompute " + v;
  return text;
}

std::string model_of(const RunData& run, const Json& start) {
  std::string name = text_of(start, "arch");
  const auto config = [&](const char* key) {
    const auto at = run.values.find(key);
    return at == run.values.end() ? std::string() : at->second;
  };
  if (name.empty()) name = config("model.preset");
  if (name.empty()) name = config("model.family");
  if (const double n = number_of(start, "parameters"); std::isfinite(n)) name += " (" + human_count(n) + " parameters)";
  std::string shape;
  for (const auto& [key, label] : {std::pair{"model.layers", "layers"},
                                   {"model.hidden", "hidden"},
                                   {"model.heads", "heads"},
                                   {"data.sequence_length", "sequence"},
                                   {"batch.global", "batch"},
                                   {"precision.compute", ""}})
    if (const std::string v = config(key); !v.empty())
      shape += fmt::format("{}{}{}{}", shape.empty() && name.empty() ? "" : ", ", label, *label ? " " : "", v);
  return name + shape;
}

std::string about(const RunData& run) {
  Json start;
  double first = std::nan(""), last = std::nan("");
  std::int64_t starts = 0;
  std::string end;
  const auto seen = [&](double wall) {
    if (!std::isfinite(wall) || wall <= 0 || wall > 2e11) return;
    first = std::isfinite(first) ? std::min(first, wall) : wall;
    last = std::isfinite(last) ? std::max(last, wall) : wall;
  };
  for (const Json& e : run.events) {
    const std::string name = text_of(e, "event");
    seen(number_of(e, "wall_time_s"));
    if (name == "start" || name == "resume") {
      start = e;
      ++starts;
      end.clear();
    }
    if (name == "stop") end = text_of(e, "reason", "stopped");
  }
  for (const auto& m : run.metrics.steps) seen(m.wall_time_s);
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
  if (std::isfinite(first)) dates = utc_timestamp(first) + " to " + utc_timestamp(last);
  if (starts > 1) dates += fmt::format(", {} attempts", starts);
  return "<dl class=about>" + row("Model", model_of(run, start)) + row("Layout", layout_of(run, start)) +
         row("Host", host) + row("Peak of a device", peak) + row("Software", software) + row("Dates", dates) +
         row("Ended", end.empty() && !run.events.empty() ? "no stop recorded: still running, or killed" : end) +
         "</dl>";
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
  // Scopes nest (a package holds its cores), so they are not summed.
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

double median(std::vector<double> v) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return std::nan("");
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

std::string head_section(const RunData& run) {
  std::string s = "<h1>" + escape(run.path.filename().string()) + "</h1>" + about(run) + tiles(run);
  if (run.notices.empty()) return s;
  s += "<div class=notice role=note>";
  for (const std::string& n : run.notices) s += "<p>" + escape(n) + "</p>";
  return s + "</div>";
}

}  // namespace molen::serve
