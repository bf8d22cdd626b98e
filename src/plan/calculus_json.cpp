#include "plan/calculus_table.h"

namespace molen::plan {
namespace {

Json estimate_json(const Estimate& estimate, double per_unit = 1.0) {
  return {
      {"value", estimate.value / per_unit}, {"low", estimate.low() / per_unit}, {"high", estimate.high() / per_unit}};
}

Json figure_json(const cluster::Figure& figure) {
  return {{"value", figure.value}, {"spread", figure.spread}, {"source", figure.source}};
}

Json plan_json(const TrainingPlan& plan) {
  const cluster::Cluster& c = plan.cluster;
  return {{"cluster", c.name},
          {"title", c.title},
          {"device", c.device.name},
          {"devices", plan.devices},
          {"devices_per_node", c.node.devices},
          {"tokens", plan.tokens},
          {"mfu", figure_json(plan.mfu)},
          {"recompute", plan.recompute},
          {"noise_scale_tokens", plan.noise_scale > 0.0 ? Json(plan.noise_scale) : Json()},
          {"peak_16bit_flops_per_s", figure_json(c.device.peak_16bit)},
          {"memory_bytes", figure_json(c.device.memory)},
          {"idle_power_w", figure_json(c.device.idle_power)},
          {"peak_power_w", figure_json(c.device.peak_power)},
          {"load", figure_json(training_load())},
          {"host_power_w", figure_json(c.node.host_power)},
          {"pue", figure_json(c.site.pue)},
          {"intensity_kg_per_j", figure_json(c.site.intensity)},
          {"water_m3_per_j", figure_json(c.site.water)},
          {"price_eur_per_j", figure_json(c.site.price)},
          {"price_eur_per_device_s", c.site.device_hour ? figure_json(*c.site.device_hour) : Json()},
          {"car_kg_per_m", figure_json(car_emissions())}};
}

Json costs_json(const TrainingCosts& costs) {
  return {{"days", estimate_json(costs.seconds, 86400.0)},
          {"device_hours", estimate_json(costs.device_seconds, 3600.0)},
          {"power_w", estimate_json(costs.power)},
          {"computer_energy_kwh", estimate_json(costs.computer_energy, 3.6e6)},
          {"energy_kwh", estimate_json(costs.energy, 3.6e6)},
          {"co2e_t", estimate_json(costs.emissions, 1e3)},
          {"water_l", estimate_json(costs.water, 1e-3)},
          {"electricity_eur", estimate_json(costs.electricity)},
          {"device_hours_eur", estimate_json(costs.device_hours)},
          {"car_km", estimate_json(costs.car, 1e3)}};
}

Json memory_json(double parameters, int devices) {
  Json all = Json::array();
  for (const StateBytes& bytes : kStateBytes) {
    Json zero = Json::array();
    for (int stage = 0; stage <= 3; ++stage) zero.push_back(zero_bytes(bytes, stage, parameters, devices));
    all.push_back({{"name", bytes.name},
                   {"bytes_per_parameter",
                    {{"weights", bytes.weights},
                     {"master", bytes.master},
                     {"gradients", bytes.gradients},
                     {"moments", bytes.moments}}},
                   {"zero_bytes_per_device", std::move(zero)}});
  }
  return all;
}

Json loss_json(const ModelReport& model) {
  Json all = Json::array();
  for (std::size_t i = 0; i < model.losses.size(); ++i)
    all.push_back({{"law", scaling_laws()[i].name}, {"loss", model.losses[i]}});
  return all;
}

Json batches_json(const std::vector<BatchRow>& rows) {
  Json all = Json::array();
  for (const BatchRow& row : rows)
    all.push_back({{"batch_tokens", row.batch},
                   {"token_ratio", row.token_ratio},
                   {"step_ratio", row.step_ratio},
                   {"tokens", row.tokens},
                   {"steps", row.steps},
                   {"step_s", estimate_json(row.step_seconds)},
                   {"days", estimate_json(row.seconds, 86400.0)}});
  return all;
}

Json model_json(const ModelReport& model, int devices) {
  Json flops = Json::array();
  for (const FlopsRow& row : model.flops)
    flops.push_back({{"rule", name_of(row.rule)},
                     {"per_token", row.per_token},
                     {"days", estimate_json(row.seconds, 86400.0)},
                     {"used", row.rule == model.rule}});
  return {{"name", model.model.name},
          {"parameters", model.model.parameters},
          {"active_parameters", model.model.active},
          {"sequence", model.model.arch ? Json(model.model.sequence) : Json()},
          {"flops", std::move(flops)},
          {"costs", costs_json(model.costs)},
          {"frontier_rule",
           {{"optimal_flops", model.frontier.optimal_flops},
            {"optimal_energy_kwh", estimate_json(model.frontier.optimal_energy, 3.6e6)},
            {"energy_kwh", estimate_json(model.frontier.energy, 3.6e6)}}},
          {"memory", memory_json(model.model.parameters, devices)},
          {"optimal_tokens_ratio", model.optimal_tokens},
          {"loss", loss_json(model)},
          {"batches", batches_json(model.batches)}};
}

}  // namespace

Json to_json(const CalculusReport& report) {
  Json models = Json::array(), rows = Json::array();
  for (const ModelReport& model : report.models) models.push_back(model_json(model, report.plan.devices));
  for (std::size_t i = 0; i < report.days.models.size(); ++i) {
    Json days = Json::array();
    for (const Estimate& seconds : report.days.seconds[i]) days.push_back(estimate_json(seconds, 86400.0));
    rows.push_back({{"name", report.days.models[i].name},
                    {"parameters", report.days.models[i].active},
                    {"days", std::move(days)}});
  }
  return {{"plan", plan_json(report.plan)},
          {"models", std::move(models)},
          {"days", {{"tokens", report.days.tokens}, {"rows", std::move(rows)}}}};
}

}  // namespace molen::plan
