// The tables of the page: predicted beside measured, events, the configuration.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"
#include "plan/calculus.h"
#include "serve/footprint.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// Returns the error as a bar from the middle; a bar at the edge means 100% or more.
std::string error_bar(double error) {
  const double part = std::clamp(error, -1.0, 1.0) * 68;
  return fmt::format(
      "<svg viewBox='0 0 140 12' aria-hidden=true><rect x={:.1f} y=1 width={:.1f} height=10 fill='var(--c{})' /><line "
      "class=grid x1=70 x2=70 "
      "y1=0 y2=12 /></svg>",
      part < 0 ? 70 + part : 70, std::abs(part), error < 0 ? 0 : 1);
}

std::string row(const std::string& name, const std::string& count, double predicted, double measured,
                const std::string& p, const std::string& m, const std::string& waited, const std::string& bytes,
                const char* kind = "") {
  const double error = predicted / measured - 1;
  return fmt::format("<tr{}><th scope=row>", kind) + escape(name) + "<td>" + count + "<td>" + bytes + "<td>" + p +
         "<td>" + m + "<td>" +
         (std::isfinite(error) && measured > 0 ? fmt::format("{:+.1f}%<td>", 100 * error) + error_bar(error)
                                               : "-<td>") +
         "<td>" + waited;
}

std::string seconds(double s) {
  return std::isfinite(s) ? human(Seconds(s)) : "-";
}
// Returns predicted seconds with the spread that the object has of them, if it has any.
std::string predicted_seconds(double s, const Json& object) {
  const double spread = number_of(object, "predicted_spread");
  return seconds(s) +
         (std::isfinite(s) && spread > 0 && spread < 1e6 ? fmt::format(" &plusmn;{:.0f}%", 100 * spread) : "");
}
std::string bytes(double b) {
  return std::abs(b) < 9e18 ? human(Bytes(static_cast<std::int64_t>(b))) : "-";
}

std::string member_row(const Json& object, const std::string& name, const char* p, const char* m,
                       std::string (*show)(double)) {
  const double predicted = number_of(object, p), measured = number_of(object, m);
  if (!std::isfinite(predicted) && !std::isfinite(measured)) return "";
  return row(name, "", predicted, measured, show(predicted), show(measured), "", "", " class=total");
}

std::string step_row(const Json& step) {
  const double predicted = number_of(step, "predicted"), measured = number_of(step, "measured");
  if (!std::isfinite(predicted) && !std::isfinite(measured)) return "";
  return row("step", "", predicted, measured, predicted_seconds(predicted, step), seconds(measured), "", "",
             " class=total");
}

std::string joules(double j) {
  return std::isfinite(j) ? fmt::format("{:.4g} J", j) : "-";
}

// The parts of a step, of which those with the largest errors come first, and what they differ by.
std::string parts_table(const Json& stage, const std::string& caption) {
  const Json parts = stage.contains("parts") ? stage["parts"] : Json();
  const double step = stage.contains("step_s") ? number_of(stage["step_s"], "measured") : std::nan("");
  if (!parts.is_array() || parts.empty()) return "";
  std::string s = "<div class=scroll><table><caption>" + escape(caption) +
                  "<tr><th scope=col>part of the step<th scope=col>predicted<th scope=col>measured<th "
                  "scope=col>difference<th scope=col>of the step";
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(kShown, parts.size()); ++i) {
    const double p = number_of(parts[i], "predicted_s"), m = number_of(parts[i], "measured_s");
    s += "<tr><th scope=row>" + escape(text_of(parts[i], "part", "?")) + "<td>" + seconds(p) + "<td>" + seconds(m) +
         "<td>" + (std::isfinite(p - m) ? (p < m ? "-" : "+") + seconds(std::abs(p - m)) : "-") + "<td>" +
         (step > 0 && std::isfinite(p - m) ? fmt::format("{:+.1f}%", 100 * (p - m) / step) : "-");
  }
  return s + "</table></div>";
}

std::string phases_table(const Json& phases) {
  if (!phases.is_array() || phases.empty()) return "";
  std::string s =
      "<div class=scroll><table><caption>Phases of a step, seconds as means over ranks.<tr><th scope=col>phase<th><th>"
      "<th scope=col>predicted<th scope=col>measured<th scope=col>error<th><th>";
  for (const Json& phase : phases) {
    const double p = number_of(phase, "predicted_s"), m = number_of(phase, "measured_s");
    s += row(text_of(phase, "phase", "?"), "", p, m, seconds(p), seconds(m), "", "");
  }
  return s + "</table></div>";
}

std::string axes_table(const Json& axes) {
  if (!axes.is_array() || axes.empty()) return "";
  std::string s =
      "<div class=scroll><table><caption>Communication by stream: of its time, the part beside which nothing is "
      "computed "
      "is exposed.<tr><th scope=col>stream<th scope=col>predicted<th scope=col>measured<th scope=col>exposed, "
      "predicted<th scope=col>exposed, measured";
  for (const Json& axis : axes)
    s += "<tr><th scope=row>" + escape(text_of(axis, "stream", "?")) + "<td>" +
         seconds(number_of(axis, "predicted_s")) + "<td>" + seconds(number_of(axis, "measured_s")) + "<td>" +
         seconds(number_of(axis, "predicted_exposed_s")) + "<td>" + seconds(number_of(axis, "measured_exposed_s"));
  return s + "</table></div>";
}

// The later stages of a pipeline: a row each, and the parts with the largest errors.
std::string later_stages(const Json& stages) {
  if (!stages.is_array() || stages.empty()) return "";
  std::string s =
      "<div class=scroll><table><caption>Later stages of the pipeline, each by its first rank.<tr><th "
      "scope=col>stage<th><th><th scope=col>predicted<th scope=col>measured<th scope=col>error<th><th>";
  std::string details;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::string name = fmt::format("stage {}", i + 1);
    if (const std::string failure = text_of(stages[i], "failure"); !failure.empty())
      s += "<tr><th scope=row>" + name + "<td colspan=7 class=text>no prediction: " + escape(failure);
    else
      s += member_row(stages[i].contains("step_s") ? stages[i]["step_s"] : Json(), name, "predicted", "measured",
                      seconds);
    details += parts_table(stages[i], fmt::format("Stage {}: the parts of the step with the largest errors.", i + 1));
  }
  return s + "</table></div>" + details;
}

// One row of savings: the mean over pairs of steps, and the interval that holds it with 95 % confidence.
std::string saving_row(const std::string& name, const Json& savings, const std::string& key, double unit,
                       const char* unit_name) {
  const Json& s = savings.is_object() && savings.contains(key) ? savings[key] : Json();
  const double value = number_of(s, "value"), low = number_of(s, "low"), high = number_of(s, "high");
  if (!std::isfinite(value) || !std::isfinite(low) || !std::isfinite(high))
    return "<tr><th scope=row>" + escape(name) + "<td>not measured<td><td>";
  return "<tr><th scope=row>" + escape(name) +
         fmt::format("<td>{:.4g} {}<td>{:.4g} to {:.4g} {}<td>{:.0f}", value / unit, unit_name, low / unit, high / unit,
                     unit_name, number_of(s, "pairs"));
}

}  // namespace

std::string policy_table(const RunData& run) {
  const Json* policy = nullptr;
  for (const Json& e : run.events)
    if (text_of(e, "event") == "policy") policy = &e;
  if (policy == nullptr) return "";
  const bool clock = text_of(*policy, "unit") == "Hz";
  const double unit = clock ? 1e6 : 1.0, chosen = number_of(*policy, "chosen");
  std::string s = "<h3>Energy policy</h3><p>" + escape(text_of(*policy, "policy")) + " set the " +
                  escape(text_of(*policy, "kind")) + " of the job's devices between steps";
  if (text_of(*policy, "chosen") == "program") s += ", and chose the clocks that the program sets within them";
  if (std::isfinite(chosen)) s += fmt::format(", and chose {:.4g} {}", chosen / unit, clock ? "MHz" : "W");
  if (const double budget = number_of(*policy, "budget_w"); std::isfinite(budget))
    s += fmt::format(", to keep the job below {:.4g} W", budget);
  s += ".</p>";
  if (const std::string why = text_of(*policy, "refused"); !why.empty())
    s += "<p>It ended before the run did: " + escape(why) + ".</p>";
  if (text_of(*policy, "policy") == "power_budget") return s;
  const Json savings = policy->contains("savings") ? (*policy)["savings"] : Json();
  return s +
         "<div class=scroll><table><caption>Saved in a step beside the reference setting, measured in turn with it "
         "after the choice</caption><tr><th scope=col>saved<th scope=col>mean<th scope=col>95 % interval<th "
         "scope=col>pairs" +
         saving_row("energy", savings, "joules", 1.0, "J") + saving_row("time", savings, "seconds", 1e-3, "ms") +
         "</table></div>";
}

std::string budget_section(const RunData& run) {
  std::string said, forecast;
  for (const Json& e : run.events)
    if (text_of(e, "event") == "budget")
      said += "<tr><td>" + escape(text_of(e, "step")) + "<td class=text>" + escape(text_of(e, "text"));
  if (!run.metrics.steps.empty() && run.metrics.steps.back().kwh_at_end) {
    const store::StepMetrics& last = run.metrics.steps.back();
    const auto range = [](const store::AtEnd& of, const char* unit) {
      return fmt::format("{:.4g} {} ({:.4g} to {:.4g})", of.value, unit, of.low, of.high);
    };
    forecast =
        fmt::format("<p>Forecast after step {} for the end of the run: {}", last.step, range(*last.kwh_at_end, "kWh"));
    if (last.kg_co2e_at_end) forecast += ", " + range(*last.kg_co2e_at_end, "kg CO2e");
    forecast += escape(energy_left_out(run)) + ", with a probability of 95 % by the spread of steps.</p>";
  }
  if (said.empty()) return forecast;
  return "<h3>Budget</h3>" + forecast + "<div class=scroll><table><tr><th scope=col>step<th scope=col class=text>what" +
         said + "</table></div>";
}

std::string predicted_section(const RunData& run) {
  std::string s = "<h2>Predicted beside measured</h2>";
  if (!run.predicted.is_object())
    return s +
           "<p class=none>No prediction: <code>molen report RUN --cluster FILE</code> takes the description of a "
           "cluster or a calibration (<code>molen calibrate</code>), and so does <code>molen train</code>.</p>";
  const auto part = [&](const char* key) { return run.predicted.contains(key) ? run.predicted[key] : Json(); };
  s += "<div class=scroll><table><caption>Error: predicted over measured, less one. Right of the middle: predicted too "
       "much. The percentage beside a predicted time is that of its 80 % interval. Waiting for other ranks is apart "
       "from what is measured.</caption>"
       "<tr><th scope=col>what<th scope=col>count<th scope=col>bytes<th scope=col>predicted<th scope=col>measured<th "
       "scope=col>error<th><th scope=col>waiting";
  s += step_row(part("step_s"));
  const Json memory = part("memory_bytes");
  s += member_row(memory, "memory: arena of a rank (measured: pages touched)", "planned", "measured", bytes);
  s += member_row(memory, "memory: whole process", "process_predicted", "process_measured", bytes);
  // A measurement of the devices alone is compared with what is predicted of them.
  const Json energy = part("step_j");
  const std::string coverage = text_of(energy, "coverage");
  s += member_row(energy, "energy of a step" + (coverage.empty() ? "" : " (measured: " + coverage + ")"),
                  coverage == "gpu only" ? "predicted_devices" : "predicted", "measured", joules);
  const std::string below =
      "</table></div>" + phases_table(part("phases")) +
      parts_table(run.predicted, "The parts of the step with the largest errors, on the first stage.") +
      axes_table(part("axes")) + later_stages(part("later_stages"));
  const Json ops = part("ops");
  if (!ops.is_array()) return s + below;
  for (const Json& op : ops) {
    const double p = number_of(op, "predicted_s"), m = number_of(op, "measured_s");
    const double waited = number_of(op, "waited_s");
    s += row(text_of(op, "kind", "?"), escape(text_of(op, "count")), p, m, predicted_seconds(p, op), seconds(m),
             waited > 0 ? seconds(waited) : "", bytes(number_of(op, "bytes")));
  }
  return s + below;
}

std::string footprint_table(const RunData& run) {
  const auto f = footprint_of(run);
  if (!f) return "";
  if (f->sites.empty())
    return "<p class=none>No site is named, so emissions are not known: <code>energy.site</code> takes a country such "
           "as NL, a cluster or a file.</p>";
  std::string s = "<h3>At the site " + escape(f->sites) + "</h3><div class=scroll><table>";
  const auto add = [&](const char* name, const std::optional<double>& value, const char* unit,
                       const std::string& note) {
    if (value) s += fmt::format("<tr><th scope=row>{}<td>{:.4g} {}<td class=text>", name, *value, unit) + escape(note);
  };
  const auto kwh = [](const std::optional<double>& j) { return j ? std::optional(*j / kJoulesPerKwh) : std::nullopt; };
  add("energy of the computers", kwh(f->computers_j), "kWh", f->partial.empty() ? "" : "measured: " + f->partial);
  if (f->undone_j > 0.0) add("energy of steps that failures undid", kwh(f->undone_j), "kWh", "");
  if (f->site_j) add("energy with the site", kwh(f->site_j), "kWh", fmt::format("PUE {:.4g}", f->pue.value_or(0.0)));
  if (f->kg_co2e)
    add("emissions", f->kg_co2e, "kg CO2e",
        fmt::format("{:.4g} g CO2e/kWh{}; {}", f->grams_per_kwh.value_or(0.0), spread_text(*f), f->intensity_source));
  else
    s += "<tr><th scope=row>emissions<td>not known<td class=text>an attempt that measured energy named no site";
  add("emissions by contracts", f->market_kg_co2e, "kg CO2e", "market-based; the line above is by location");
  add("emissions of making the computers", f->embodied_kg_co2e, "kg CO2e",
      "embodied: their share for the time of the run, not in the lines above");
  add("a car emits as much over", f->car_km, "km", plan::car_emissions().source);
  add("water", f->water_l, "l", "");
  add("electricity", f->eur, "EUR", "");
  return s + "</table></div>";
}

std::string events_section(const RunData& run) {
  constexpr std::size_t kEnds = 60;
  std::vector<const Json*> shown;
  for (const Json& e : run.events)
    if (text_of(e, "event") != "baseline") shown.push_back(&e);
  std::string s = "<h2>Events</h2>";
  if (shown.empty()) return s + "<p class=none>None recorded.</p>";
  s += "<details><summary>" + fmt::format("{} events", shown.size()) +
       "</summary><div class=scroll><table><tr><th scope=col>time (UTC)<th scope=col class=text>event<th "
       "scope=col>step<th scope=col class=text>what";
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (shown.size() > 2 * kEnds && i == kEnds) {
      s += fmt::format("<tr><td>...<td class=text>{} more<td><td>", shown.size() - 2 * kEnds);
      i = shown.size() - kEnds;
    }
    const Json& e = *shown[i];
    std::string what;
    for (const auto& [key, value] : e.items())
      // Leaves out arrays (the communication of a run in its last event): they are too long for a line and have tables
      // of their own.
      if (key != "event" && key != "wall_time_s" && key != "step" && !value.is_array() && !text_of(e, key).empty())
        what += (what.empty() ? "" : "; ") +
                (key == "text" || key == "reason" ? text_of(e, key) : key + " " + text_of(e, key));
    const double wall = number_of(e, "wall_time_s");
    s += "<tr><td>" + escape(wall > 0 && wall < 2e11 ? utc_timestamp(wall) : "-") + "<td class=text>" +
         escape(text_of(e, "event")) + "<td>" + escape(text_of(e, "step", "-")) + "<td class=text>" + escape(what);
  }
  return s + "</table></div></details>";
}

std::string config_section(const RunData& run) {
  std::string s = "<h2>Configuration</h2>";
  if (run.config.empty()) return s + "<p class=none>No config.toml in the run directory.</p>";
  s += "<details><summary>Resolved, with the origin of each value</summary><pre>" + escape(run.config) +
       "</pre></details>";
  if (!run.environment.is_object() || run.environment.empty()) return s;
  s += "<details><summary>Environment</summary><div class=scroll><table>";
  for (const auto& [key, value] : run.environment.items())
    s += "<tr><th scope=row>" + escape(key) + "<td class=text>" + escape(text_of(run.environment, key));
  return s + "</table></div></details>";
}

}  // namespace molen::serve
