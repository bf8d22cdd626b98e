#include "serve/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace molen::serve {
namespace {

bool is_start(const Json& event) {
  const std::string name = text_of(event, "event");
  return name == "start" || name == "resume";
}

std::string value_of(const RunData& run, const std::string& key) {
  const auto at = run.values.find(key);
  return at == run.values.end() ? std::string() : at->second;
}

}  // namespace

std::vector<std::string> tags_of(const fs::path& run) {
  std::vector<std::string> tags;
  if (!fs::exists(run / "environment.json")) return tags;
  const Json environment = read_json(run / "environment.json");
  if (environment.is_object() && environment.contains("tags") && environment["tags"].is_array())
    for (const Json& tag : environment["tags"])
      if (tag.is_string()) tags.push_back(tag.get<std::string>());
  return tags;
}

Json last_start(const RunData& run) {
  Json start = Json::object();
  for (const Json& e : run.events)
    if (is_start(e)) start = e;
  return start;
}

std::string layout_of(const RunData& run) {
  const Json start = last_start(run);
  const auto value = [&](const char* key) { return value_of(run, std::string("parallel.") + key); };
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

std::string model_of(const RunData& run) {
  const Json start = last_start(run);
  std::string name = text_of(start, "arch");
  for (const char* key : {"model.preset", "model.family"})
    if (name.empty()) name = value_of(run, key);
  if (const double n = number_of(start, "parameters"); std::isfinite(n)) name += " (" + human_count(n) + " parameters)";
  std::string shape;
  for (const auto& [key, label] : {std::pair{"model.layers", "layers"},
                                   {"model.hidden", "hidden"},
                                   {"model.heads", "heads"},
                                   {"data.sequence_length", "sequence"},
                                   {"batch.global", "batch"},
                                   {"precision.compute", ""}})
    if (const std::string v = value_of(run, key); !v.empty())
      shape += fmt::format("{}{}{}{}", shape.empty() && name.empty() ? "" : ", ", label, *label ? " " : "", v);
  return name + shape;
}

Ending ending_of(const RunData& run) {
  Ending end;
  if (run.events.empty()) return end;
  std::string from, reason;
  int idle = 0;  // number of later starts that ended without a step
  for (const Json& e : run.events) {
    if (is_start(e)) {
      from = text_of(e, "step");
      end.stopped = false;
    }
    if (text_of(e, "event") != "stop") continue;
    end.stopped = true;
    const std::string step = text_of(e, "step");
    if (!reason.empty() && !step.empty() && step == from) {
      ++idle;
      continue;
    }
    reason = text_of(e, "reason", "stopped");
    idle = 0;
  }
  end.complete = end.stopped && reason.starts_with("reached train.until");
  end.text = end.stopped ? reason : "no stop recorded: still running, or killed";
  if (end.stopped && idle > 0)
    end.text += fmt::format("; started {} more after that, with nothing to do",
                            idle == 1 ? "once" : fmt::format("{} times", idle));
  return end;
}

Dates dates_of(const RunData& run) {
  Dates d{std::nan(""), std::nan(""), 0};
  const auto seen = [&](double wall) {
    if (!std::isfinite(wall) || wall <= 0 || wall > 2e11) return;
    d.first = std::isfinite(d.first) ? std::min(d.first, wall) : wall;
    d.last = std::isfinite(d.last) ? std::max(d.last, wall) : wall;
  };
  for (const Json& e : run.events) {
    seen(number_of(e, "wall_time_s"));
    d.starts += is_start(e);
  }
  for (const auto& m : run.metrics.steps) seen(m.wall_time_s);
  return d;
}

std::vector<Figure> figures_of(const RunData& run) {
  const auto& steps = run.metrics.steps;
  std::vector<double> rates, seconds, mfu, joules;
  std::int64_t peak = 0;
  for (const auto& m : steps) {
    rates.push_back(m.tokens_per_s);
    seconds.push_back(m.step_s);
    if (m.mfu) mfu.push_back(*m.mfu);
    if (m.j_per_token) joules.push_back(*m.j_per_token);
    peak = std::max(peak, m.memory_peak_bytes);
  }
  std::vector<Figure> all;
  const auto add = [&](const char* name, double value, auto&& text) {
    const bool known = std::isfinite(value);
    all.push_back({name, known ? text(value) : "-", known ? std::optional(value) : std::nullopt});
  };
  const double none = std::nan("");
  const auto plain = [](const char* format) {
    return [format](double v) { return fmt::format(fmt::runtime(format), v); };
  };
  const auto of_last = [&](auto member) { return steps.empty() ? none : static_cast<double>(steps.back().*member); };
  add("steps", of_last(&store::StepMetrics::step), plain("{:.0f}"));
  add("tokens", of_last(&store::StepMetrics::tokens_total), human_count);
  add("last loss", of_last(&store::StepMetrics::loss), plain("{:.4f}"));
  add("held-out loss", run.validations.empty() ? none : run.validations.back().loss, plain("{:.4f}"));
  add("step, median", median(seconds), [](double v) { return human(Seconds(v)); });
  add("tokens/s, median", median(rates), human_count);
  add("MFU, median", median(mfu), [](double v) { return fmt::format("{:.1f}%", 100 * v); });
  add("memory peak of a rank", peak > 0 ? static_cast<double>(peak) : none,
      [](double v) { return human(Bytes(static_cast<std::int64_t>(v))); });
  add("J/token, median", median(joules), plain("{:.3g}"));
  return all;
}

}  // namespace molen::serve
