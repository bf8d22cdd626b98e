// The charts over steps: loss, held-out text, speed, memory, phases, gradient norm, learning rate, energy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/units.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

template <class F>
Series over_steps(const RunData& run, const std::string& name, F&& value) {
  Series s;
  s.name = name;
  for (const auto& m : run.metrics.steps) s.points.emplace_back(static_cast<double>(m.step), value(m));
  return s;
}

// Returns the marks where the run was stopped and resumed. Marks beyond the step of a later start are dropped, because
// the run no longer went there.
std::vector<Mark> marks_of(const RunData& run) {
  std::vector<Mark> marks;
  for (const Json& e : run.events) {
    const std::string name = text_of(e, "event");
    const double step = number_of(e, "step");
    if ((name != "resume" && name != "stop" && name != "start") || !std::isfinite(step)) continue;
    if (name != "stop") std::erase_if(marks, [&](const Mark& m) { return m.x > step; });
    if (name == "start") continue;
    // A stop and the resume after it have the same step, so they share a line and a name.
    if (!marks.empty() && marks.back().x == step && marks.back().name == "stop" && name == "resume")
      marks.back().name = "stop, resume";
    else
      marks.push_back({step, name});
  }
  return marks;
}

Chart chart(const RunData& run, const std::string& title, const std::string& y) {
  Chart c;
  c.title = title;
  c.x_name = "step";
  c.y_name = y;
  c.marks = marks_of(run);
  return c;
}

Chart loss_chart(const RunData& run) {
  Chart c = chart(run, "Loss", "nats per token");
  c.series.push_back(over_steps(run, "training", [](const auto& m) { return m.loss; }));
  Series held{"held out", {}, true};
  for (const auto& v : run.validations) held.points.emplace_back(static_cast<double>(v.step), v.loss);
  if (!held.points.empty()) c.series.push_back(held);
  return c;
}

// Returns the chart with a line for each language, and the baselines to beat in the colour of their language.
Chart bits_chart(const RunData& run) {
  Chart c = chart(run, "Held-out text", "bits per byte");
  c.empty = "No validation yet (train.validate_every).";
  std::map<std::string, Series> languages;
  for (const auto& v : run.validations)
    for (const auto& [language, bits] : v.bits_per_byte)
      languages[language].points.emplace_back(static_cast<double>(v.step), bits);
  int color = 0;
  const double last = run.metrics.steps.empty() ? 1.0 : static_cast<double>(run.metrics.steps.back().step);
  for (auto& [language, series] : languages) {
    series.name = language;
    series.color = color;
    c.series.push_back(series);
    int dash = 0;
    for (const auto& [name, bits] : run.baselines) {
      ++dash;  // one dash pattern per baseline, in all languages
      if (bits.contains(language))
        c.series.push_back(
            {name + ", " + language, {{0.0, bits.at(language)}, {last, bits.at(language)}}, false, dash, color});
    }
    ++color;
  }
  return c;
}

// Returns the measured noise scale beside the tokens of a batch. An attempt that resumes drops what was measured beyond
// its step, as with validations.
Chart noise_chart(const RunData& run) {
  std::map<std::int64_t, std::pair<double, double>> measured;  // by step: noise scale and tokens of a batch
  for (const Json& event : run.events) {
    const std::string name = text_of(event, "event");
    const double step = number_of(event, "step");
    if (!(step >= 0.0 && step <= 1e15)) continue;
    const auto whole = static_cast<std::int64_t>(step);
    if (name == "start" || name == "resume") measured.erase(measured.upper_bound(whole), measured.end());
    if (name == "noise_scale" && event.contains("large"))
      measured[whole] = {number_of(event, "tokens"), number_of(event["large"], "tokens")};
  }
  Chart c = chart(run, "Gradient noise scale", "tokens");
  if (measured.empty()) return c;
  Series scale{"noise scale", {}, true}, batch{"a batch", {}, false, 1};
  for (const auto& [step, values] : measured) {
    scale.points.emplace_back(static_cast<double>(step), values.first);
    batch.points.emplace_back(static_cast<double>(step), values.second);
  }
  c.series = {scale, batch};
  c.from_zero = true;
  return c;
}

Chart memory_chart(const RunData& run) {
  std::int64_t most = 0;
  for (const auto& m : run.metrics.steps) most = std::max({most, m.memory_peak_bytes, m.memory_planned_bytes});
  const bool large = most >= std::int64_t{4} << 30;
  const double unit = large ? 1024.0 * 1024 * 1024 : 1024.0 * 1024;
  const auto in_unit = [&](std::int64_t bytes) { return bytes > 0 ? static_cast<double>(bytes) / unit : std::nan(""); };
  Chart c = chart(run, "Memory of a rank", large ? "GiB, most of all ranks" : "MiB, most of all ranks");
  c.series.push_back(
      over_steps(run, "in use, by the plan's places", [&](const auto& m) { return in_unit(m.memory_peak_bytes); }));
  c.series.push_back(over_steps(run, "planned", [&](const auto& m) { return in_unit(m.memory_planned_bytes); }));
  c.series.back().dashed = 1;
  c.from_zero = true;
  return c;
}

Chart phase_chart(const RunData& run) {
  Chart c = chart(run, "Phases of a step", "seconds, compute stream, mean of ranks");
  c.stacked = true;
  std::map<std::string, double> total;
  for (const auto& m : run.metrics.steps)
    for (const auto& [phase, seconds] : m.phase_s)
      if (seconds > 0 && std::isfinite(seconds)) total[phase] += seconds;
  // The largest phases lie at the bottom, where their changes are easiest to see. Idle time is always on top, in grey.
  // In older runs "bubble" is all of the idle time.
  std::vector<std::string> names;
  for (const auto& [name, seconds] : total) names.push_back(name);
  const auto top = [](const std::string& name) { return name == "idle" ? 2 : name == "bubble" ? 1 : 0; };
  std::sort(names.begin(), names.end(),
            [&](const auto& a, const auto& b) { return std::pair(top(a), -total[a]) < std::pair(top(b), -total[b]); });
  const std::string grey = total.count("idle") > 0 ? "idle" : "bubble";
  int color = 0;
  for (const std::string& name : names) {
    c.series.push_back(over_steps(run, name, [&](const auto& m) {
      const auto at = m.phase_s.find(name);
      return at == m.phase_s.end() ? std::nan("") : at->second;
    }));
    c.series.back().color = name == grey ? 7 : color == 7 ? ++color : color;
    ++color;
  }
  return c;
}

}  // namespace

std::string Charts::add(const Chart& chart) {
  charts_.push_back(serve::to_script(chart));
  return to_html(chart, charts_.size() - 1);
}

std::string Charts::to_script() const {
  std::string s = "[";
  for (std::size_t i = 0; i < charts_.size(); ++i) s += (i ? ",\n" : "") + charts_[i];
  return s + "]";
}

std::string course_section(const RunData& run, Charts& charts) {
  std::string s =
      "<div class=bar><h2>Course</h2><span class=axis role=group aria-label='x axis'><button data-axis=step "
      "aria-pressed=true>steps</button>"
      "<button data-axis=tokens aria-pressed=false>tokens</button></span><span class=hint>Drag to zoom, double click "
      "for all.</span></div><div class=charts>";
  // One statement per chart: the order of the charts is the order of these calls.
  s += charts.add(loss_chart(run));
  s += charts.add(bits_chart(run));
  Chart speed = chart(run, "Speed", "tokens/s, all ranks");
  speed.series.push_back(over_steps(run, "tokens/s", [](const auto& m) { return m.tokens_per_s; }));
  speed.from_zero = true;
  s += charts.add(speed);
  s += charts.add(phase_chart(run));
  s += charts.add(memory_chart(run));
  Chart norm = chart(run, "Gradient norm", "before clipping");
  norm.series.push_back(over_steps(run, "gradient norm", [](const auto& m) { return m.grad_norm; }));
  norm.from_zero = true;
  Chart lr = chart(run, "Learning rate", "of the optimizer step");
  lr.series.push_back(over_steps(run, "learning rate", [](const auto& m) { return m.lr; }));
  lr.from_zero = true;
  s += charts.add(norm);
  s += charts.add(lr);
  if (const Chart noise = noise_chart(run); !noise.series.empty()) s += charts.add(noise);
  return s + "</div>";
}

std::map<std::string, EnergyTotal> energy_totals(const RunData& run) {
  std::map<std::string, EnergyTotal> totals;
  std::map<std::string, std::set<std::string>> sources;
  for (const auto& m : run.metrics.steps)
    for (const auto& [scope, joules] : m.energy_j) {
      if (!joules || !std::isfinite(*joules)) continue;
      totals[scope].joules += *joules;
      ++totals[scope].steps;
      const auto at = m.energy_source.find(scope);
      sources[scope].insert(at == m.energy_source.end() ? "source unknown" : at->second);
    }
  for (auto& [scope, total] : totals)
    for (const std::string& source : sources[scope]) total.source += (total.source.empty() ? "" : " and ") + source;
  return totals;
}

std::string energy_left_out(const RunData& run) {
  std::string text;
  for (const auto& m : run.metrics.steps)
    if (m.j_per_token && !m.energy_coverage.empty()) text = " (" + m.energy_coverage + ")";
  return text;
}

namespace {

// Returns the loss against the energy of the run so far: what a kWh bought. The held-out losses stand where the step of
// their validation ended.
Chart loss_by_energy(const RunData& run) {
  Chart c;
  c.title = "Loss against energy";
  c.x_name = "kWh";
  c.y_name = "nats per token";
  Series training, held{"held out", {}, true};
  training.name = "training";
  std::map<std::int64_t, double> kwh_at;
  for (const auto& m : run.metrics.steps) {
    if (!m.kwh_total) continue;
    training.points.emplace_back(*m.kwh_total, m.loss);
    kwh_at[m.step] = *m.kwh_total;
  }
  for (const auto& v : run.validations)
    if (const auto at = kwh_at.find(v.step); at != kwh_at.end()) held.points.emplace_back(at->second, v.loss);
  c.series.push_back(training);
  if (!held.points.empty()) c.series.push_back(held);
  return c;
}

// Returns a sentence with the run's totals, which include the energy between the steps; the chart does not.
std::string whole_run(const RunData& run) {
  const Json& t = run.energy_totals;
  const double joules = number_of(t, "total_j"), steps = number_of(t, "steps"), tokens = number_of(t, "tokens");
  if (!std::isfinite(joules) || !std::isfinite(steps) || !std::isfinite(tokens)) return "";
  const std::string partial = text_of(t, "partial");
  std::string s = fmt::format("<p>Whole run, with start, validation and checkpoints: {:.4g} kJ", joules * 1e-3);
  if (const double off = number_of(t, "total_resolution_j"); std::isfinite(off))
    s += fmt::format(" &plusmn; {:.3g} kJ by the resolution of the meters, whose accuracy is not known", off * 1e-3);
  else if (t.contains("total_resolution_j"))  // runs of older versions have no such member
    s += " (the resolution of a meter is not known)";
  if (const double per_token = number_of(t, "j_per_token"); std::isfinite(per_token))
    s += fmt::format(", {:.3g} J/token", per_token);
  s += fmt::format(" over {:.0f} steps and {} tokens", steps, human_count(tokens));
  s += (partial.empty() ? "" : " (" + escape(partial) + ")") + ".";
  if (const double undone = number_of(t, "undone_j"); undone > 0)
    s += fmt::format(" Another {} ({:.1f}% of all) went into steps that failures undid.",
                     fmt::format("{:.4g} kJ", undone * 1e-3), 100.0 * undone / (undone + joules));
  return s + "</p>";
}

// Names the scopes whose joules may be wrong; "" where nothing says so.
std::string doubts_list(const RunData& run) {
  std::string s;
  for (const auto& [attempt, reasons] : run.energy_doubts)
    for (const auto& [scope, why] : reasons)
      s += fmt::format("<li>attempt {}, ", attempt) + escape(scope) + ": " + escape(why);
  return s.empty() ? "" : "<p class=none>Joules that may be wrong:</p><ul class=none>" + s + "</ul>";
}

std::string resolution_text(double joules) {
  return std::isfinite(joules) ? fmt::format("{:.3g} kJ", joules * 1e-3) : "not known";
}

// The joules that a model estimated for parts without a meter, apart from all that is measured; "" where there are
// none.
std::string modelled_table(const RunData& run) {
  const Json& line = run.energy_modelled;
  if (!line.is_object() || !line.contains("energy_j") || !line["energy_j"].is_object()) return "";
  std::string rows;
  for (const auto& [scope, e] : line["energy_j"].items()) {
    const double joules = number_of(e, "joules"), least = number_of(e, "least"), most = number_of(e, "most");
    const bool described = line.contains("scopes") && line["scopes"].is_object() && line["scopes"].contains(scope);
    const Json known = described ? line["scopes"][scope] : Json::object();
    rows += "<tr><th scope=row>" + escape(scope);
    rows += std::isfinite(joules)
                ? fmt::format("<td>{:.4g} kJ<td>{:.4g} to {:.4g} kJ", joules * 1e-3, least * 1e-3, most * 1e-3)
                : "<td>-<td>-";
    rows += "<td class=text>model: " + escape(text_of(known, "figures"));
  }
  if (rows.empty()) return "";
  return "<h3>Estimated by a model in the last attempt</h3><p>No meter reads these parts. None of these joules is in a "
         "figure above or in a chart.</p><div class=scroll><table><tr><th scope=col>scope<th scope=col>energy<th "
         "scope=col>bounds<th scope=col class=text>source" +
         rows + "</table></div>";
}

}  // namespace

std::string energy_section(const RunData& run, Charts& charts) {
  std::string s = "<h2>Energy</h2>", reasons;
  for (const Json& e : run.events)
    if (text_of(e, "event") == "meters" && e.contains("unavailable") && e["unavailable"].is_object()) {
      reasons.clear();
      for (const auto& [meter, reason] : e["unavailable"].items())
        reasons += "<li>" + escape(meter) + ": " + escape(text_of(e["unavailable"], meter));
    }
  if (!reasons.empty()) reasons = "<p class=none>Meters that could not be read:</p><ul class=none>" + reasons + "</ul>";
  reasons += doubts_list(run);
  const auto totals = energy_totals(run);
  if (totals.empty()) {
    std::set<std::string> none;
    for (const auto& m : run.metrics.steps)
      for (const auto& [scope, source] : m.energy_source) none.insert(scope + ": " + source);
    s += "<p class=none>Not measured";
    if (reasons.empty() && none.empty())
      s += ": this run recorded no meter (<code>molen doctor</code> says which meters this machine has and why others "
           "cannot be read)";
    for (const std::string& n : none) s += "; " + escape(n);
    return s + ".</p>" + whole_run(run) + modelled_table(run) + reasons;
  }
  Chart joules = chart(run, "Energy of a step", "joules"), per_token = chart(run, "Energy per token", "joules");
  joules.from_zero = per_token.from_zero = true;
  s +=
      "<div class=scroll><table><tr><th scope=col>scope<th scope=col>energy<th scope=col>&plusmn; by resolution, whole "
      "run<th scope=col>steps with a value<th scope=col class=text>source";
  const Json known = run.energy_totals.is_object() ? run.energy_totals.value("resolution_j", Json()) : Json();
  for (const auto& [scope, total] : totals) {
    joules.series.push_back(over_steps(run, scope + " (" + total.source + ")", [&scope = scope](const auto& m) {
      const auto at = m.energy_j.find(scope);
      return at == m.energy_j.end() ? std::nan("") : at->second.value_or(std::nan(""));
    }));
    s += "<tr><th scope=row>" + escape(scope) +
         fmt::format("<td>{:.4g} kJ<td>{}<td>{} of {}<td class=text>", total.joules * 1e-3,
                     resolution_text(number_of(known, scope)), total.steps, run.metrics.steps.size()) +
         escape(total.source);
  }
  per_token.series.push_back(over_steps(run, "J/token" + energy_left_out(run),
                                        [](const auto& m) { return m.j_per_token.value_or(std::nan("")); }));
  s += "</table></div>" + whole_run(run) + footprint_table(run) + budget_section(run) + policy_table(run) +
       phases_of_energy(run) + phases_of_attempts(run) + hosts_table(run) + "<div class=charts>";
  s += charts.add(joules);
  s += charts.add(per_token);
  s += charts.add(loss_by_energy(run));
  return s + "</div>" + modelled_table(run) + reasons;
}

}  // namespace molen::serve
