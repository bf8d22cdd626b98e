#include "store/metrics.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/json_fields.h"
#include "store/lines.h"

namespace molen::store {
namespace {

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}
Json number(const std::optional<double>& value) {
  return value ? number(*value) : Json(nullptr);
}

template <class T>
T get(const Json& j, const char* key, std::string_view origin) {
  try {
    const Json& value = json_member(j, key, origin);
    if constexpr (std::is_same_v<T, double>) {
      if (value.is_null()) return std::nan("");
    }
    return value.get<T>();
  } catch (const Json::exception& e) {
    throw UsageError("{}: {}: {}", origin, key, e.what());
  }
}

std::optional<double> optional_number(const Json& j, const char* key, std::string_view origin) {
  if (json_member(j, key, origin).is_null()) return std::nullopt;
  return get<double>(j, key, origin);
}

}  // namespace

std::string to_line(const StepMetrics& m) {
  Json phases = Json::object(), energy = Json::object(), source = Json::object();
  for (const auto& [phase, s] : m.phase_s) phases[phase] = number(s);
  for (const auto& [scope, joules] : m.energy_j) energy[scope] = number(joules);
  for (const auto& [scope, kind] : m.energy_source) source[scope] = kind;
  Json j{{"step", m.step},
         {"attempt", m.attempt},
         {"wall_time_s", number(m.wall_time_s)},
         {"loss", number(m.loss)},
         {"grad_norm", number(m.grad_norm)},
         {"lr", number(m.lr)},
         {"loss_scale", number(m.loss_scale)},
         {"skipped_steps", m.skipped_steps ? Json(*m.skipped_steps) : Json(nullptr)},
         {"tokens_total", m.tokens_total},
         {"step_s", number(m.step_s)},
         {"tokens_per_s", number(m.tokens_per_s)},
         {"tokens_per_s_per_device", number(m.tokens_per_s_per_device)},
         {"model_tflops_per_device", number(m.model_tflops_per_device)},
         {"mfu", number(m.mfu)},
         {"hfu", number(m.hfu)},
         {"memory_peak_bytes", m.memory_peak_bytes},
         {"memory_planned_bytes", m.memory_planned_bytes},
         {"data_wait_s", number(m.data_wait_s)},
         {"phase_s", phases},
         {"energy_j", energy},
         {"energy_source", source},
         {"j_per_token", number(m.j_per_token)},
         {"kwh_total", number(m.kwh_total)},
         {"kg_co2e_total", number(m.kg_co2e_total)},
         {"samples", {m.samples[0], m.samples[1]}}};
  if (m.balance_loss) j["balance_loss"] = number(m.balance_loss);
  if (m.z_loss) j["z_loss"] = number(m.z_loss);
  if (m.dropped_share) j["dropped_share"] = number(m.dropped_share);
  if (!m.flops_formula.empty()) j["flops_formula"] = m.flops_formula;
  const auto at_end = [&](const char* key, const std::optional<AtEnd>& value) {
    if (value) j[key] = {{"value", number(value->value)}, {"low", number(value->low)}, {"high", number(value->high)}};
  };
  at_end("kwh_at_end", m.kwh_at_end), at_end("kg_co2e_at_end", m.kg_co2e_at_end);
  if (!m.energy_coverage.empty()) j["energy_coverage"] = m.energy_coverage;
  for (const auto& [scope, joules] : m.energy_resolution_j) j["energy_resolution_j"][scope] = number(joules);
  for (const auto& [scope, e] : m.energy_model_j)
    j["energy_model_j"][scope] =
        e ? Json{{"joules", number(e->joules)}, {"least", number(e->least)}, {"most", number(e->most)}} : Json();
  if (m.policy_setting) j["policy_setting"] = number(m.policy_setting);
  if (!m.run_id.empty()) {
    j["run_id"] = m.run_id;
    j["history"] = m.history;
  }
  return j.dump();
}

StepMetrics from_line(std::string_view line, std::string_view origin) {
  return from_json(parse_json(line, origin), origin);
}

StepMetrics from_json(const Json& j, std::string_view origin) {
  const JsonFields fields(j, std::string(origin));
  StepMetrics m;
  m.step = fields.integer("step");
  m.attempt = fields.integer("attempt");
  m.wall_time_s = get<double>(j, "wall_time_s", origin);
  m.loss = get<double>(j, "loss", origin);
  m.grad_norm = get<double>(j, "grad_norm", origin);
  m.lr = get<double>(j, "lr", origin);
  if (j.contains("balance_loss")) m.balance_loss = optional_number(j, "balance_loss", origin);
  if (j.contains("z_loss")) m.z_loss = optional_number(j, "z_loss", origin);
  if (j.contains("dropped_share")) m.dropped_share = optional_number(j, "dropped_share", origin);
  if (j.contains("loss_scale")) m.loss_scale = optional_number(j, "loss_scale", origin);
  if (j.contains("skipped_steps") && !j.at("skipped_steps").is_null())
    m.skipped_steps = fields.integer("skipped_steps");
  m.tokens_total = fields.integer("tokens_total");
  m.step_s = get<double>(j, "step_s", origin);
  m.tokens_per_s = get<double>(j, "tokens_per_s", origin);
  m.tokens_per_s_per_device = get<double>(j, "tokens_per_s_per_device", origin);
  m.model_tflops_per_device = optional_number(j, "model_tflops_per_device", origin);
  m.mfu = optional_number(j, "mfu", origin);
  m.hfu = optional_number(j, "hfu", origin);
  m.memory_peak_bytes = fields.integer("memory_peak_bytes");
  m.memory_planned_bytes = fields.integer("memory_planned_bytes");
  m.data_wait_s = get<double>(j, "data_wait_s", origin);
  m.j_per_token = optional_number(j, "j_per_token", origin);
  if (j.contains("kwh_total")) m.kwh_total = optional_number(j, "kwh_total", origin);
  if (j.contains("kg_co2e_total")) m.kg_co2e_total = optional_number(j, "kg_co2e_total", origin);
  const auto at_end = [&](const char* key, std::optional<AtEnd>& value) {
    if (!j.contains(key)) return;
    const Json& of = j.at(key);
    const std::string where = fmt::format("{}: {}", origin, key);
    value = {get<double>(of, "value", where), get<double>(of, "low", where), get<double>(of, "high", where)};
  };
  at_end("kwh_at_end", m.kwh_at_end), at_end("kg_co2e_at_end", m.kg_co2e_at_end);
  if (j.contains("flops_formula")) m.flops_formula = get<std::string>(j, "flops_formula", origin);
  if (j.contains("energy_coverage")) m.energy_coverage = get<std::string>(j, "energy_coverage", origin);
  if (j.contains("policy_setting")) m.policy_setting = optional_number(j, "policy_setting", origin);
  if (j.contains("run_id")) m.run_id = get<std::string>(j, "run_id", origin);
  if (j.contains("history")) m.history = fields.integer("history");
  const Json& samples = json_member(j, "samples", origin);
  if (!samples.is_array() || samples.size() != 2 || !samples[0].is_number_integer() || !samples[1].is_number_integer())
    throw UsageError("{}: samples: expected two whole numbers", origin);
  m.samples = {samples[0].get<std::int64_t>(), samples[1].get<std::int64_t>()};
  try {
    for (const auto& [phase, s] : json_member(j, "phase_s", origin).items())
      m.phase_s[phase] = s.is_null() ? std::nan("") : s.get<double>();
    for (const auto& [scope, joules] : json_member(j, "energy_j", origin).items())
      m.energy_j[scope] = joules.is_null() ? std::nullopt : std::optional<double>(joules.get<double>());
    for (const auto& [scope, kind] : json_member(j, "energy_source", origin).items())
      m.energy_source[scope] = kind.get<std::string>();
    if (j.contains("energy_resolution_j"))
      for (const auto& [scope, joules] : j.at("energy_resolution_j").items())
        m.energy_resolution_j[scope] = joules.is_null() ? std::nullopt : std::optional<double>(joules.get<double>());
    if (j.contains("energy_model_j"))
      for (const auto& [scope, e] : j.at("energy_model_j").items()) {
        auto& modelled = m.energy_model_j[scope];
        if (!e.is_null())
          modelled = {e.at("joules").get<double>(), e.at("least").get<double>(), e.at("most").get<double>()};
      }
  } catch (const Json::exception& e) {
    throw UsageError("{}: {}", origin, e.what());
  }
  return m;
}

MetricsFile read_metrics(const fs::path& path) {
  MetricsFile file;
  if (!path_exists(path)) return file;
  std::map<std::int64_t, StepMetrics> by_step;
  each_line(path, [&](std::string_view line, std::int64_t number) {
    const std::string origin = fmt::format("{}:{}", path.string(), number);
    Json json;
    try {
      json = parse_json(line, origin);
    } catch (const UsageError&) {
      ++file.torn_lines;
      return;
    }
    StepMetrics m = from_json(json, origin);
    if (m.attempt > file.last_attempt) {
      by_step.erase(by_step.lower_bound(m.step), by_step.end());
      file.last_attempt = m.attempt;
    }
    if (m.attempt == file.last_attempt) by_step[m.step] = std::move(m);
  });
  for (auto& [step, m] : by_step) file.steps.push_back(std::move(m));
  return file;
}

std::string first_difference(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const StepMetrics &x = a[i], &y = b[i];
    if (x.step != y.step) return fmt::format("one has step {} where the other has step {}", x.step, y.step);
    if (!same(x.loss, y.loss)) return fmt::format("step {}: loss {} and {}", x.step, x.loss, y.loss);
    if (!same(x.grad_norm, y.grad_norm))
      return fmt::format("step {}: grad_norm {} and {}", x.step, x.grad_norm, y.grad_norm);
    if (!same(x.lr, y.lr)) return fmt::format("step {}: lr {} and {}", x.step, x.lr, y.lr);
    if (x.tokens_total != y.tokens_total)
      return fmt::format("step {}: tokens_total {} and {}", x.step, x.tokens_total, y.tokens_total);
    if (x.samples != y.samples) return fmt::format("step {}: other samples", x.step);
  }
  if (a.size() != b.size()) return fmt::format("one has {} steps, the other {}", a.size(), b.size());
  return "";
}

}  // namespace molen::store
