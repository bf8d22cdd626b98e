#include "plan/calculus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/error.h"
#include "base/units.h"
#include "sim/described_energy.h"

namespace molen::plan {
namespace {

double in_quadrature(double a, double b) {
  return std::hypot(a, b);
}

bool positive(double value) {
  return std::isfinite(value) && value > 0.0;
}

// Returns the FLOPs of one more forward of the layers for each token. A forward is a third of the model FLOPs, because
// each gradient of a product takes another one; the head is not part of the layers.
double forward_of_layers(const TrainedModel& model, double exact) {
  const double head = 6.0 * static_cast<double>(model.arch->vocabulary) * static_cast<double>(model.arch->hidden);
  return (exact - head) / 3.0;
}

double exact_flops(const TrainedModel& model) {
  return arch::model_flops(*model.arch, model.sequence, model.sequence, arch::FlopsConvention::kCausal).value /
         static_cast<double>(model.sequence);
}

struct FrontierRun {
  double parameters, joules;
};
constexpr std::array kFrontierRuns{FrontierRun{22e9, 284e9}, FrontierRun{175e9, 17.65e12}, FrontierRun{1e12, 662e12}};

// Returns the geometric mean of joules / N^2 over the three published estimates. Its spread reaches the furthest one.
Estimate frontier_factor() {
  double mean = 1.0, furthest = 1.0;
  const auto factor = [](const FrontierRun& run) { return run.joules / (run.parameters * run.parameters); };
  for (const FrontierRun& run : kFrontierRuns)
    mean *= std::pow(factor(run), 1.0 / static_cast<double>(kFrontierRuns.size()));
  for (const FrontierRun& run : kFrontierRuns) furthest = std::max({furthest, factor(run) / mean, mean / factor(run)});
  return {mean, furthest - 1.0};
}

constexpr std::array kScalingLaws{
    ScalingLaw{"Hoffmann et al. 2022", 1.69, 406.4, 410.7, 0.34, 0.28},
    ScalingLaw{"Besiroglu et al. 2024", 1.8172, 482.01, 2085.43, 0.3478, 0.3658},
};

ModelReport report_of(const TrainingPlan& plan, const TrainedModel& model) {
  ModelReport report;
  report.model = model;
  report.rule = rule_of(model, plan.recompute);
  for (const FlopsRule rule : kFlopsRules)
    if (const auto flops = flops_per_token(model, rule))
      report.flops.push_back({rule, *flops, training_seconds(plan, *flops)});
  const double flops = flops_per_token(model, report.rule).value();
  report.costs = training_costs(plan, flops);
  report.frontier = frontier_rule(model.active, plan.tokens);
  if (model.active == model.parameters)
    for (const ScalingLaw& law : scaling_laws()) report.losses.push_back(law.loss(model.parameters, plan.tokens));
  report.optimal_tokens = plan.tokens / (kOptimalTokens * model.active);
  report.batches = batch_rows(plan, flops);
  return report;
}

}  // namespace

Estimate estimate_of(const cluster::Figure& figure) {
  return {figure.value, figure.spread};
}

Estimate operator*(const Estimate& a, const Estimate& b) {
  return {a.value * b.value, in_quadrature(a.spread, b.spread)};
}

Estimate operator/(const Estimate& a, const Estimate& b) {
  return {a.value / b.value, in_quadrature(a.spread, b.spread)};
}

Estimate operator*(double exact, const Estimate& a) {
  return {exact * a.value, a.spread};
}

Estimate operator+(const Estimate& a, const Estimate& b) {
  const double sum = a.value + b.value;
  return {sum, sum > 0.0 ? in_quadrature(a.value * a.spread, b.value * b.spread) / sum : 0.0};
}

TrainedModel model_of_size(double parameters) {
  return {fmt::format("{:g} B", parameters / 1e9), parameters, parameters, std::nullopt, 0};
}

TrainedModel model_of(const arch::Architecture& arch, std::int64_t sequence) {
  return {arch.name, static_cast<double>(arch::num_parameters(arch)),
          static_cast<double>(arch::num_active_parameters(arch)), arch, sequence};
}

void validate(const TrainingPlan& plan) {
  const int most = plan.cluster.devices();
  if (!(plan.mfu.value > 0.0 && plan.mfu.value <= 1.0))
    throw UsageError("--mfu: {}; a share of the peak above 0 and up to 1 is needed, such as 0.4", plan.mfu.value);
  if (!(plan.mfu.spread >= 0.0 && plan.mfu.spread < 1.0))
    throw UsageError("--mfu-spread: {}; a share of the MFU from 0 to below 1 is needed, such as 0.2", plan.mfu.spread);
  if (!positive(plan.tokens)) throw UsageError("--tokens: {}; more than 0 tokens are needed", plan.tokens);
  if (plan.devices < 1) throw UsageError("--devices: {}; at least one device is needed", plan.devices);
  if (plan.devices > most)
    throw UsageError("--devices: {} has {} in {} of {}, not {}", plan.cluster.name, counted(most, "device"),
                     counted(plan.cluster.nodes, "node"), plan.cluster.node.devices, plan.devices);
  if (plan.noise_scale != 0.0 && !positive(plan.noise_scale))
    throw UsageError("--noise-scale: {}; more than 0 tokens are needed", plan.noise_scale);
  if (!positive(plan.cluster.device.peak_16bit.value))
    throw UsageError("{}: the device {} has no 16-bit peak, of which the MFU is a share", plan.cluster.name,
                     plan.cluster.device.name);
}

std::string_view name_of(FlopsRule rule) {
  switch (rule) {
    case FlopsRule::kSixN:
      return "6N";
    case FlopsRule::kEightN:
      return "8N";
    case FlopsRule::kExact:
      return "exact";
    case FlopsRule::kExactRecompute:
      return "exact_recompute";
  }
  MOLEN_CHECK(false, "rule {}", static_cast<int>(rule));
}

std::optional<double> flops_per_token(const TrainedModel& model, FlopsRule rule) {
  if (rule == FlopsRule::kSixN) return 6.0 * model.active;
  if (rule == FlopsRule::kEightN) return 8.0 * model.active;
  if (!model.arch) return std::nullopt;
  const double exact = exact_flops(model);
  return rule == FlopsRule::kExact ? exact : exact + forward_of_layers(model, exact);
}

FlopsRule rule_of(const TrainedModel& model, bool recompute) {
  if (model.arch) return recompute ? FlopsRule::kExactRecompute : FlopsRule::kExact;
  return recompute ? FlopsRule::kEightN : FlopsRule::kSixN;
}

Estimate flops_per_second(const TrainingPlan& plan) {
  return static_cast<double>(plan.devices) * (estimate_of(plan.cluster.device.peak_16bit) * estimate_of(plan.mfu));
}

Estimate training_seconds(const TrainingPlan& plan, double flops_per_token) {
  return Estimate{flops_per_token * plan.tokens, 0.0} / flops_per_second(plan);
}

const cluster::Figure& training_load() {
  static const cluster::Figure load{0.75, sim::kPowerShareSpread,
                                    "training on 8 H100 draws 76 % of the node's rating (arXiv 2506.14551); on a "
                                    "MI250X, 408 W of 560 W (Yin et al. 2023)"};
  return load;
}

const cluster::Figure& car_emissions() {
  static const cluster::Figure car{
      0.1081e-3, 0.3,
      "new cars of 2022 in the WLTP test (European Environment Agency); on the road they emit a fifth more"};
  return car;
}

Estimate computer_power(const TrainingPlan& plan) {
  const cluster::Device& device = plan.cluster.device;
  const double load = training_load().value, range = device.peak_power.value - device.idle_power.value;
  // idle + (peak - idle) x load = idle x (1 - load) + peak x load; the spread of the load moves the difference alone.
  const Estimate figures = (1.0 - load) * estimate_of(device.idle_power) + load * estimate_of(device.peak_power);
  const double absolute = in_quadrature(figures.value * figures.spread, range * load * training_load().spread);
  const Estimate one{figures.value, figures.value > 0.0 ? absolute / figures.value : 0.0};
  const int per_node = plan.cluster.node.devices;
  const int nodes = (plan.devices + per_node - 1) / per_node;
  return static_cast<double>(plan.devices) * one +
         static_cast<double>(nodes) * estimate_of(plan.cluster.node.host_power);
}

SiteCosts site_costs(const cluster::Site& site, const Estimate& computer_energy, const Estimate& device_seconds) {
  const Estimate energy = computer_energy * estimate_of(site.pue);
  return {energy, energy * estimate_of(site.intensity), computer_energy * estimate_of(site.water),
          energy * estimate_of(site.price),
          site.device_hour ? device_seconds * estimate_of(*site.device_hour) : Estimate{}};
}

TrainingCosts training_costs(const TrainingPlan& plan, double flops_per_token) {
  TrainingCosts costs;
  costs.seconds = training_seconds(plan, flops_per_token);
  costs.device_seconds = static_cast<double>(plan.devices) * costs.seconds;
  costs.power = computer_power(plan);
  costs.computer_energy = costs.power * costs.seconds;
  const SiteCosts site = site_costs(plan.cluster.site, costs.computer_energy, costs.device_seconds);
  costs.energy = site.energy, costs.emissions = site.emissions, costs.water = site.water;
  costs.electricity = site.electricity, costs.device_hours = site.device_hours;
  costs.car = costs.emissions / estimate_of(car_emissions());
  return costs;
}

FrontierRule frontier_rule(double parameters, double tokens) {
  FrontierRule rule;
  rule.optimal_flops = 6.0 * parameters * kOptimalTokens * parameters;
  rule.optimal_energy = parameters * parameters * frontier_factor();
  rule.energy = tokens / (kOptimalTokens * parameters) * rule.optimal_energy;
  return rule;
}

double zero_bytes(const StateBytes& bytes, int stage, double parameters, int n) {
  MOLEN_CHECK(stage >= 0 && stage <= 3 && n >= 1, "ZeRO stage {} over {} devices", stage, n);
  double partitioned = 0.0;
  if (stage >= 1) partitioned += bytes.master + bytes.moments;
  if (stage >= 2) partitioned += bytes.gradients;
  if (stage >= 3) partitioned += bytes.weights;
  return parameters * (bytes.total() - partitioned + partitioned / static_cast<double>(n));
}

double ScalingLaw::loss(double parameters, double tokens) const {
  return e + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

std::span<const ScalingLaw> scaling_laws() {
  return kScalingLaws;
}

std::vector<BatchRow> batch_rows(const TrainingPlan& plan, double flops_per_token) {
  if (plan.noise_scale <= 0.0) return {};
  std::vector<double> batches;
  for (int power = -3; power <= 3; ++power) batches.push_back(std::ldexp(plan.noise_scale, power));
  if (plan.batch_tokens > 0.0 && std::find(batches.begin(), batches.end(), plan.batch_tokens) == batches.end())
    batches.push_back(plan.batch_tokens);
  std::sort(batches.begin(), batches.end());
  std::vector<BatchRow> rows;
  for (const double batch : batches) {
    BatchRow row;
    row.batch = batch;
    row.token_ratio = 1.0 + batch / plan.noise_scale;
    row.step_ratio = 1.0 + plan.noise_scale / batch;
    row.tokens = row.token_ratio * plan.tokens;
    row.steps = row.tokens / batch;
    row.step_seconds = Estimate{flops_per_token * batch, 0.0} / flops_per_second(plan);
    row.seconds = row.steps * row.step_seconds;
    rows.push_back(row);
  }
  return rows;
}

std::vector<TrainedModel> figure_models() {
  std::vector<TrainedModel> models;
  for (const double size : {1e9, 2e9, 7e9, 13e9, 30e9, 70e9}) models.push_back(model_of_size(size));
  return models;
}

std::vector<double> figure_tokens(double tokens) {
  std::vector<double> all{tokens};
  for (int column = 1; column <= 7; ++column)
    if (200e9 * column != tokens) all.push_back(200e9 * column);
  std::sort(all.begin(), all.end());
  return all;
}

DaysTable days_table(const TrainingPlan& plan, std::vector<TrainedModel> models, std::vector<double> tokens) {
  DaysTable table{std::move(models), std::move(tokens), {}};
  const FlopsRule rule = plan.recompute ? FlopsRule::kEightN : FlopsRule::kSixN;
  for (const TrainedModel& model : table.models) {
    auto& row = table.seconds.emplace_back();
    for (const double count : table.tokens)
      row.push_back(Estimate{flops_per_token(model, rule).value() * count, 0.0} / flops_per_second(plan));
  }
  return table;
}

CalculusReport calculate(const TrainingPlan& plan, const std::vector<TrainedModel>& models) {
  validate(plan);
  CalculusReport report;
  report.plan = plan;
  for (const TrainedModel& model : models) {
    if (!positive(model.parameters))
      throw UsageError("--sizes: {}; a model needs more than 0 parameters", model.parameters);
    report.models.push_back(report_of(plan, model));
  }
  std::vector<TrainedModel> rows = models;
  if (models.size() == 1)
    for (TrainedModel& model : figure_models())
      if (model.active != models.front().active) rows.push_back(std::move(model));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TrainedModel& a, const TrainedModel& b) { return a.active < b.active; });
  report.days = days_table(plan, std::move(rows), figure_tokens(plan.tokens));
  return report;
}

}  // namespace molen::plan
