#include "serve/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/clock.h"
#include "base/units.h"
#include "serve/chart.h"
#include "serve/run_data.h"

namespace molen::serve {
namespace {

// Okabe and Ito's colours, which people with any colour vision tell apart; lighter ones on dark ground.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1a1a;--soft:#666;--line:#ddd;--card:#f6f6f4;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#8c7a00;--c7:#777}
@media(prefers-color-scheme:dark){:root{--bg:#16181b;--fg:#e8e6e3;--soft:#a5a29d;--line:#3a3d42;--card:#212429;
--c0:#4fb0e8;--c1:#ff8a4a;--c2:#3fd3a6;--c3:#eda1cc;--c4:#ffc04d;--c5:#9bd6ff;--c6:#d9c84a;--c7:#aaa}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:24px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6em;margin:0}h2{margin:1.6em 0 .4em;font-size:1.15em}p.sub{margin:.2em 0 1em;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px}.tiles div{background:var(--card);border-radius:8px;padding:10px 12px}
.tiles b{display:block;font-size:1.25em;font-variant-numeric:tabular-nums}.tiles span{color:var(--soft);font-size:.85em}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}figure{margin:0;background:var(--card);border-radius:8px;padding:12px;overflow-x:auto}
figcaption{font-weight:600}figcaption small{color:var(--soft);font-weight:400}svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}
line.grid{stroke:var(--line)}line.event{stroke:var(--c1);stroke-dasharray:4 3}.legend{margin:.2em 0;font-size:.85em}.legend span{margin-right:14px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}table{border-collapse:collapse;font-size:.88em;font-variant-numeric:tabular-nums}
td,th{padding:3px 10px;text-align:right;border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}summary{cursor:pointer;color:var(--soft);font-size:.85em}
pre{background:var(--card);padding:12px;border-radius:8px;overflow:auto;font-size:.82em}.none{color:var(--soft)}.scroll{overflow-x:auto}
@media print{body{max-width:none}figure,.tiles div{border:1px solid #ccc}details{display:none}}
)css";

std::string tile(const std::string& name, const std::string& value) { return "<div><b>" + escape(value) + "</b><span>" + escape(name) + "</span></div>"; }

template <class F>
Series over_steps(const RunData& run, const std::string& name, F&& value) {
  Series s{name, {}, false};
  for (const auto& m : run.metrics.steps) s.points.emplace_back(static_cast<double>(m.step), value(m));
  return s;
}

double median(std::vector<double> v) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return std::nan("");
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

std::string text_of(const Json& j, const char* key) {
  if (!j.is_object() || !j.contains(key)) return "-";
  return j.at(key).is_string() ? j.at(key).get<std::string>() : j.at(key).dump();
}

std::vector<double> resumes(const RunData& run) {
  std::vector<double> steps;
  for (const Json& e : run.events)
    if (e.value("event", "") == "resume" && e.contains("step") && e["step"].is_number()) steps.push_back(e["step"].get<double>());
  return steps;
}

std::string head(const RunData& run) {
  const auto& steps = run.metrics.steps;
  std::string arch = "-", ranks = "-";
  for (const Json& e : run.events)
    if (e.contains("arch")) {
      arch = text_of(e, "arch");
      ranks = text_of(e, "ranks") + " (" + text_of(e, "communicator") + ")";
    }
  std::string s = "<h1>" + escape(run.path.filename().string()) + "</h1><p class=sub>" +
                  escape(fmt::format("{} on {} ranks; {}, {} cores; {}; molen {} ({})", arch, ranks, text_of(run.environment, "cpu"), text_of(run.environment, "cores"),
                                     text_of(run.environment, "time"), text_of(run.environment, "molen"), text_of(run.environment, "git"))) +
                  "</p><div class=tiles>";
  if (steps.empty()) return s + tile("steps", "0") + "</div>";
  std::vector<double> rates, seconds;
  for (const auto& m : steps) {
    rates.push_back(m.tokens_per_s);
    seconds.push_back(m.step_s);
  }
  const auto& last = steps.back();
  s += tile("steps", std::to_string(last.step)) + tile("final loss", std::isfinite(last.loss) ? fmt::format("{:.4f}", last.loss) : std::string("not finite")) + tile("tokens", human_count(static_cast<double>(last.tokens_total)));
  if (!run.validations.empty())
    for (const auto& [language, bits] : run.validations.back().bits_per_byte) s += tile("bits per byte, " + language, fmt::format("{:.3f}", bits));
  s += tile("median tokens/s", steps.empty() ? std::string("-") : fmt::format("{:.0f}", median(rates))) + tile("median step", human(Seconds(median(seconds)))) +
       tile("memory of a rank, peak", human(Bytes(last.memory_peak_bytes))) +
       tile("J/token", last.j_per_token ? fmt::format("{:.3g}", *last.j_per_token) : std::string("not measured")) + tile("attempts", std::to_string(run.metrics.last_attempt));
  return s + "</div>";
}

std::string charts(const RunData& run) {
  const auto events = resumes(run);
  std::string s = "<h2>Course</h2><div class=charts>";
  Chart loss{"Loss", "step", "nats per token", {over_steps(run, "training", [](const auto& m) { return m.loss; })}, events, false, false};
  Series held{"held out", {}, true};
  std::map<std::string, Series> bits;
  for (const auto& v : run.validations) {
    held.points.emplace_back(static_cast<double>(v.step), v.loss);
    for (const auto& [language, b] : v.bits_per_byte) {
      bits[language].name = language;
      bits[language].points.emplace_back(static_cast<double>(v.step), b);
    }
  }
  if (!held.points.empty()) loss.series.push_back(held);
  s += to_html(loss);
  Chart per_byte{"Held-out text", "step", "bits per byte", {}, events, false, false};
  for (auto& [language, series] : bits) per_byte.series.push_back(series);
  s += to_html(per_byte);
  s += to_html({"Speed", "step", "tokens/s", {over_steps(run, "all ranks", [](const auto& m) { return m.tokens_per_s; })}, events, true, false});
  s += to_html({"Memory of a rank", "step", "MiB", {over_steps(run, "used", [](const auto& m) { return static_cast<double>(m.memory_peak_bytes) / (1 << 20); }),
                over_steps(run, "planned", [](const auto& m) { return static_cast<double>(m.memory_planned_bytes) / (1 << 20); })}, events, true, false});
  Chart phases{"Phases of a step", "step", "seconds of the compute stream", {}, events, true, true};
  std::set<std::string> names;
  for (const auto& m : run.metrics.steps)
    for (const auto& [phase, seconds] : m.phase_s)
      if (seconds > 0) names.insert(phase);
  for (const std::string& name : names)
    phases.series.push_back(over_steps(run, name, [&](const auto& m) { return m.phase_s.contains(name) && std::isfinite(m.phase_s.at(name)) ? m.phase_s.at(name) : 0.0; }));
  s += to_html(phases);
  s += to_html({"Gradient norm", "step", "before clipping", {over_steps(run, "norm", [](const auto& m) { return m.grad_norm; })}, events, true, false});
  s += to_html({"Learning rate", "step", "", {over_steps(run, "lr", [](const auto& m) { return m.lr; })}, events, true, false});
  return s + "</div>";
}

std::string predicted(const RunData& run) {
  std::string s = "<h2>Predicted beside measured</h2>";
  if (!run.predicted.is_object()) return s + "<p class=none>No prediction: train with <code>--cluster FILE</code> (what <code>molen calibrate</code> writes).</p>";
  const auto row = [&](const std::string& name, const std::string& count, double p, double m, const std::string& ptext, const std::string& mtext) {
    return "<tr><td>" + escape(name) + "<td>" + count + "<td>" + ptext + "<td>" + mtext + "<td>" + (m > 0 ? fmt::format("{:+.1f}%", 100 * (p - m) / m) : std::string("-"));
  };
  s += "<div class=scroll><table><tr><th>what<th>count<th>predicted<th>measured<th>error";
  try {
    const Json &step = run.predicted.at("step_s"), &memory = run.predicted.at("memory_bytes");
    const double ps = step.at("predicted").get<double>(), ms = step.at("measured").get<double>();
    s += row("step", "", ps, ms, human(Seconds(ps)), human(Seconds(ms)));
    const auto bytes = [&](const char* name, const char* p, const char* m) {
      const auto a = memory.at(p).get<std::int64_t>(), b = memory.at(m).get<std::int64_t>();
      s += row(name, "", static_cast<double>(a), static_cast<double>(b), human(Bytes(a)), human(Bytes(b)));
    };
    bytes("memory: arena", "planned", "measured");
    bytes("memory: whole process", "process_predicted", "process_measured");
    for (const Json& op : run.predicted.at("ops")) {
      const double p = op.at("predicted_s").get<double>(), m = op.at("measured_s").get<double>();
      s += row(op.at("kind").get<std::string>(), std::to_string(op.at("count").get<int>()), p, m, human(Seconds(p)), human(Seconds(m)));
    }
  } catch (const Json::exception& e) {
    return s + "</table></div><p class=none>predicted.json cannot be read: " + escape(e.what()) + "</p>";
  }
  return s + "</table></div>";
}

std::string energy(const RunData& run) {
  std::string s = "<h2>Energy</h2>";
  std::map<std::string, Series> scopes;
  std::map<std::string, std::string> sources;
  for (const auto& m : run.metrics.steps)
    for (const auto& [scope, joules] : m.energy_j)
      if (joules) {
        scopes[scope].name = scope;
        scopes[scope].points.emplace_back(static_cast<double>(m.step), *joules);
        if (m.energy_source.contains(scope)) sources[scope] = m.energy_source.at(scope);
      }
  if (!scopes.empty()) {
    Chart c{"Energy of a step", "step", "joules", {}, resumes(run), true, false};
    for (auto& [scope, series] : scopes) {
      series.name += " (" + sources[scope] + ")";
      c.series.push_back(series);
    }
    return s + "<div class=charts>" + to_html(c) + "</div>";
  }
  s += "<p class=none>Not measured.";
  for (const Json& e : run.events)
    if (e.value("event", "") == "meters" && e.contains("unavailable")) {
      s += " Reasons:</p><ul>";
      for (const auto& [meter, reason] : e["unavailable"].items()) s += "<li>" + escape(meter) + ": " + escape(reason.is_string() ? reason.get<std::string>() : reason.dump());
      return s + "</ul>";
    }
  return s + "</p>";
}

std::string event_table(const RunData& run) {
  std::string s = "<h2>Events</h2><div class=scroll><table><tr><th>time<th>event<th>step<th>what";
  for (const Json& e : run.events) {
    const std::string name = e.value("event", "");
    if (name == "validation") continue;
    std::string what;
    for (const char* key : {"reason", "path", "text", "from"})
      if (e.contains(key) && e[key].is_string() && !e[key].get<std::string>().empty()) what = e[key].get<std::string>();
    const double wall = e.contains("wall_time_s") && e["wall_time_s"].is_number() ? e["wall_time_s"].get<double>() : 0.0;
    s += "<tr><td>" + escape(utc_timestamp(wall)) + "<td>" + escape(name) + "<td>" + escape(text_of(e, "step")) + "<td>" + escape(what);
  }
  if (run.metrics.torn_lines > 0) s += fmt::format("<tr><td>-<td>note<td>-<td>{} line(s) of metrics.jsonl were cut short and are left out", run.metrics.torn_lines);
  return s + "</table></div>";
}

}  // namespace

void write_report(const fs::path& run_directory, const fs::path& output) {
  const RunData run = read_run(run_directory);
  write_file_atomic(output, "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'><title>" +
                                escape(run.path.filename().string()) + " - molen</title><style>" + kStyle + "</style>" + head(run) + charts(run) + predicted(run) +
                                energy(run) + event_table(run) + "<h2>Configuration</h2><details><summary>resolved, with the origin of each value</summary><pre>" +
                                escape(run.config) + "</pre></details></html>\n");
}

Json summary(const fs::path& run_directory) {
  const RunData run = read_run(run_directory);
  Json j{{"run", run.path.filename().string()}, {"steps", run.metrics.steps.empty() ? 0 : run.metrics.steps.back().step}, {"attempts", run.metrics.last_attempt}};
  if (!run.metrics.steps.empty()) j["last"] = parse_json(store::to_line(run.metrics.steps.back()), "metrics");
  if (!run.validations.empty()) {
    j["validation"] = {{"step", run.validations.back().step}, {"loss", run.validations.back().loss}, {"bits_per_byte", Json::object()}};
    for (const auto& [language, bits] : run.validations.back().bits_per_byte) j["validation"]["bits_per_byte"][language] = bits;
  }
  if (run.predicted.is_object()) j["predicted"] = run.predicted;
  return j;
}

}  // namespace molen::serve
