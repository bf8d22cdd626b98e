#include "sim/cost_model.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_fields.h"
#include "program/parts/part.h"
#include "program/values/optimizer.h"
#include "sim/not_measured.h"

namespace molen::sim {
namespace {

// The weight of the prior that time is proportional to work, relative to one sample with a relative error of 1.
constexpr double kRidge = 0.05;

Eigen::VectorXd prior(std::size_t features) {
  Eigen::VectorXd w = Eigen::VectorXd::Zero(static_cast<Eigen::Index>(features));
  if (features > 1) w[1] = 1.0;
  return w;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Fit fit_kind(const std::vector<const Sample*>& samples) {
  const auto n = static_cast<Eigen::Index>(samples.size());
  const auto k = static_cast<Eigen::Index>(samples[0]->features.size());
  Eigen::MatrixXd x(n, k);
  Eigen::VectorXd y(n);
  std::vector<double> seconds;
  for (Eigen::Index i = 0; i < n; ++i) {
    const Sample& s = *samples[static_cast<std::size_t>(i)];
    MOLEN_CHECK(static_cast<Eigen::Index>(s.features.size()) == k, "samples of {} differ in features", s.kind);
    for (Eigen::Index j = 0; j < k; ++j) x(i, j) = s.features[static_cast<std::size_t>(j)];
    y[i] = std::log(std::max(s.seconds, 1e-9));
    seconds.push_back(s.seconds);
  }
  // The features are centred, so that the ridge pulls the exponents and not the level.
  const Eigen::RowVectorXd center = x.colwise().mean();
  Eigen::MatrixXd xc = x.rowwise() - center;
  xc.col(0).setOnes();
  const Eigen::VectorXd w0 = prior(static_cast<std::size_t>(k));
  const Eigen::VectorXd target = y - xc * w0;
  Eigen::MatrixXd a = xc.transpose() * xc;
  for (Eigen::Index j = 1; j < k; ++j) a(j, j) += kRidge * static_cast<double>(n);
  a(0, 0) += 1e-12;
  const Eigen::VectorXd w = w0 + a.ldlt().solve(xc.transpose() * target);
  Fit fit;
  fit.weights.assign(w.data(), w.data() + k);
  fit.center.assign(center.data(), center.data() + k);
  fit.residual = std::sqrt((y - xc * w).squaredNorm() / static_cast<double>(n));
  fit.samples = n;
  fit.typical_s = median(seconds);
  return fit;
}

// Whether an optimizer's step multiplies matrices. Its step on all other parameters has a cost of another kind.
bool multiplies_matrices(const program::Step& step) {
  return std::holds_alternative<program::OptimizerStep>(step.op) && step.hardware_flops.value > 0;
}

// Returns the tokens on which an op of a part works: those of a chunk of the head, of a piece of the rows, or of the
// micro-batch. A tile of the experts has an equal share.
std::int64_t tokens_of(const program::Compute& op, const program::Attributes& has) {
  const program::Rows& rows = has.rows;
  const auto& part = program::declaration_of(op.part);
  if (op.portion < 0 || part.mixes_positions()) return rows.count();  // a step of a ring works on all rows
  if (has.tile > 0) return std::min(has.tile, rows.count() - op.portion * has.tile);
  if (part.computes_experts()) return rows.count() / rows.expert_tiles;
  if (!rows.in_pieces()) return rows.count();
  const auto [first, end] = program::rows_of_piece(rows, op.portion);
  return end - first;
}

}  // namespace

std::vector<double> features_of(const program::Step& step) {
  const auto log1 = [](double v) { return std::log(std::max(v, 1.0)); };
  const double flops = step.hardware_flops.value, moved = static_cast<double>(step.moved.value);
  if (const auto* part = std::get_if<program::Compute>(&step.op))
    // The last feature is there because adding to a gradient reads it, while overwriting may first have to clear it.
    return {1.0,
            log1(flops > 0 ? flops : moved),
            log1(moved),
            log1(static_cast<double>(tokens_of(*part, step.attributes))),
            log1(static_cast<double>(step.attributes.rows.length)),
            step.updates(program::Arg::kGrad) ? 1.0 : 0.0};
  if (multiplies_matrices(step)) return {1.0, log1(flops), log1(moved)};
  return {1.0, log1(moved)};
}

std::vector<double> features_of(const program::EpilogueCost& epilogue) {
  return {1.0, std::log(std::max(static_cast<double>(epilogue.moved.value), 1.0))};
}

std::string fitted_kind(const program::Program& p, const program::Step& step) {
  const auto kernel = step.attributes.kernel;
  std::string kind = program::kind_of(step.op);
  if (kernel && *kernel != p.setting.kernels) kind += fmt::format(" by {}", name_of(*kernel));
  // Attention within documents has kernels of its own.
  if (step.find(program::Arg::kDocuments) && std::holds_alternative<program::Compute>(step.op))
    kind += " within documents";
  if (const auto* update = std::get_if<program::OptimizerStep>(&step.op)) {
    if (update->kind != program::optimizers().front().name) kind += fmt::format(" by {}", update->kind);
    if (update->stage != program::UpdateStage::kWhole) kind += fmt::format(", {}", name_of(update->stage));
    if (multiplies_matrices(step)) kind += ", matrices";
  }
  const bool sums =
      std::holds_alternative<program::AllReduce>(step.op) || std::holds_alternative<program::ReduceScatter>(step.op);
  if (sums) {
    const auto buffer = static_cast<std::size_t>(step.operand(program::Arg::kTo).buffer);
    if (const DType type = p.buffers.at(buffer).dtype; size_of(type) == 2) kind += fmt::format(" of {}", name_of(type));
  }
  if (program::is_copy(step.op) && step.updates(program::Arg::kTo)) kind += " that adds";
  return kind;
}

CostModel CostModel::fit(const std::vector<Sample>& samples) {
  std::map<std::string, std::vector<const Sample*>> by_kind;
  for (const Sample& s : samples) by_kind[s.kind].push_back(&s);
  CostModel model;
  for (const auto& [kind, of_kind] : by_kind) model.fits_[kind] = fit_kind(of_kind);
  return model;
}

double CostModel::seconds(const program::Program& p, const program::Step& step) const {
  return seconds(fitted_kind(p, step), features_of(step));
}

const std::pair<const std::string, Fit>& CostModel::entry_of(const std::string& kind) const {
  auto found = fits_.find(kind);
  // A recomputation runs the forward kernel, so it costs the same.
  if (found == fits_.end() && kind.rfind("recompute ", 0) == 0) found = fits_.find("forward " + kind.substr(10));
  if (found == fits_.end())
    throw NotMeasured(
        "the calibration has no measurement of '{}'; the programs that it was made with have no such op{}", kind,
        kind.find(" by ") == std::string::npos || kind.starts_with("optimizer_step")
            ? ""
            : "; `molen calibrate` with a configuration that chooses these kernels measures it");
  return *found;
}

const std::string& CostModel::fit_of(const std::string& kind) const {
  return entry_of(kind).first;
}

double CostModel::seconds(const std::string& kind, const std::vector<double>& features) const {
  const Fit& fit = entry_of(kind).second;
  if (features.size() != fit.weights.size())
    throw UsageError("the calibration's fit of '{}' has {} weights where {} are needed: run `molen calibrate` again",
                     kind, fit.weights.size(), features.size());
  double log_t = fit.weights[0];
  for (std::size_t j = 1; j < features.size(); ++j) log_t += fit.weights[j] * (features[j] - fit.center[j]);
  return calibration_factor_ * std::exp(log_t);
}

namespace {

// Returns the spread of values whose logarithms have this standard deviation.
double spread_of_deviation(double deviation) {
  constexpr double kDeviations = 1.2816;  // of a normal distribution, for 80 %
  return std::expm1(kDeviations * deviation);
}

}  // namespace

double CostModel::spread(const std::string& kind) const {
  double squares = 0.0, samples = 0.0;
  for (const auto& [name, fit] : fits_) {
    const auto n = static_cast<double>(fit.samples);
    squares += n * fit.residual * fit.residual, samples += n;
  }
  const Fit& fit = entry_of(kind).second;
  const double of_all = samples > 0.0 ? squares / samples : 0.0, n = std::max<double>(1.0, double(fit.samples));
  return spread_of_deviation(std::sqrt(fit.residual * fit.residual + of_all / n));
}

double CostModel::factor_spread() const {
  return spread_of_deviation(factor_residual_);
}

void CostModel::set_calibration_factor(double factor, double residual) {
  MOLEN_CHECK(factor > 0.0 && std::isfinite(factor), "a calibration factor of {}", factor);
  MOLEN_CHECK(residual >= 0.0 && std::isfinite(residual), "a residual of {}", residual);
  calibration_factor_ = factor, factor_residual_ = residual;
}

Json CostModel::to_json() const {
  Json kinds = Json::object();
  for (const auto& [kind, f] : fits_)
    kinds[kind] = {{"weights", f.weights},
                   {"center", f.center},
                   {"residual", f.residual},
                   {"samples", f.samples},
                   {"typical_s", f.typical_s}};
  return {{"calibration_factor", calibration_factor_}, {"factor_residual", factor_residual_}, {"kinds", kinds}};
}

namespace {

// Returns the root mean square of logarithms: above this largest one, no measurement says anything.
double residual_in(const Json& json, const char* key, std::string_view origin) {
  constexpr double kMost = 20.0;
  const double residual = json.at(key).get<double>();
  if (!(residual >= 0.0) || residual > kMost)
    throw UsageError("{}: damaged: {} is {}, which is not between 0 and {}", origin, key, residual, kMost);
  return residual;
}

}  // namespace

CostModel CostModel::from_json(const Json& json, std::string_view origin) {
  CostModel model;
  try {
    const double factor = json.at("calibration_factor").get<double>();
    if (!(factor > 0.0) || !std::isfinite(factor))
      throw UsageError("{}: damaged: a calibration factor of {}", origin, factor);
    model.calibration_factor_ = factor;
    model.factor_residual_ = residual_in(json, "factor_residual", origin);
    for (const auto& [kind, f] : json.at("kinds").items()) {
      Fit fit{f.at("weights").get<std::vector<double>>(), f.at("center").get<std::vector<double>>(),
              residual_in(f, "residual", origin), JsonFields(f, std::string(origin)).integer("samples"),
              f.at("typical_s").get<double>()};
      if (fit.weights.empty() || fit.weights.size() != fit.center.size())
        throw UsageError("{}: damaged fit of '{}'", origin, kind);
      model.fits_[kind] = std::move(fit);
    }
  } catch (const Json::exception& e) {
    throw UsageError("{}: not a calibration: {}", origin, e.what());
  }
  return model;
}

}  // namespace molen::sim
