// The compute calculus: days, energy, emissions, money, memory and loss of a training, by formulas alone. Nothing is
// simulated here, so a result takes no time and holds for models and clusters that nobody has run yet. docs/calculus.md
// derives each formula and names its source.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/architecture.h"
#include "cluster/cluster.h"

namespace molen::plan {

// A result with its interval: with a probability of 80 %, the true value lies between low() and high(). `spread` is
// relative. The interval divides and multiplies by 1 + spread, so a quotient has the interval of its inverse, and no
// spread makes a bound negative; for a small spread it is value (1 -+ spread), as of a cluster::Figure.
struct Estimate {
  double value = 0.0;
  double spread = 0.0;
  double low() const { return value / (1.0 + spread); }
  double high() const { return value * (1.0 + spread); }
};
Estimate estimate_of(const cluster::Figure& figure);
// Return the product and the quotient of independent estimates, and an estimate times an exact number. Relative spreads
// add in quadrature.
Estimate operator*(const Estimate& a, const Estimate& b);
Estimate operator/(const Estimate& a, const Estimate& b);
Estimate operator*(double exact, const Estimate& a);
// Returns the sum of independent estimates. Absolute spreads add in quadrature.
Estimate operator+(const Estimate& a, const Estimate& b);

// The model that is trained. Its parameter counts include the embeddings.
struct TrainedModel {
  std::string name;         // "llama3-8b", "30 B"
  double parameters = 0.0;  // that have weights, gradients and optimizer states
  double active = 0.0;      // N of the rules 6N and 8N: those that take part in the computation of a token
  std::optional<arch::Architecture> arch;  // without it, there is no exact count of FLOPs
  std::int64_t sequence = 0;               // tokens of a training sequence; used with an architecture only
};
TrainedModel model_of_size(double parameters);
TrainedModel model_of(const arch::Architecture& arch, std::int64_t sequence);

// Everything that a calculation needs besides the model.
struct TrainingPlan {
  cluster::Cluster cluster;
  int devices = 0;            // of the cluster, 1 to cluster.devices()
  double tokens = 0.0;        // that the training reads, repeated ones included
  cluster::Figure mfu;        // share of the 16-bit peak that the counted FLOPs reach
  bool recompute = false;     // the backward computes all activations of the layers again; such FLOPs are counted
  double noise_scale = 0.0;   // gradient noise scale in tokens; 0: not given
  double batch_tokens = 0.0;  // the batch of the configuration in tokens; 0: not given
};
// Throws UsageError that names the option if a value is outside its range.
void validate(const TrainingPlan& plan);

// --- compute ---------------------------------------------------------------------------------------------------------

// A rule for the FLOPs of a token, forward and backward.
//   kSixN, kEightN: 6 N, and 8 N with full recompute (Kaplan et al., arXiv 2001.08361, section 2.1; the recomputed
//     forward adds 2 N)
//   kExact: arch::model_flops by the causal convention: the matrices of all parts, and attention at half
//   kExactRecompute: kExact and one more forward of the layers; the head is not computed again
enum class FlopsRule { kSixN, kEightN, kExact, kExactRecompute };
inline constexpr std::array kFlopsRules{FlopsRule::kSixN, FlopsRule::kEightN, FlopsRule::kExact,
                                        FlopsRule::kExactRecompute};
std::string_view name_of(FlopsRule rule);  // "6N", "8N", "exact", "exact_recompute"
// Returns FLOPs per token, or nothing for an exact count of a model without architecture.
std::optional<double> flops_per_token(const TrainedModel& model, FlopsRule rule);
// Returns the rule from which all results follow: the exact count if there is an architecture, else 6 N; with
// recompute, the same with the recomputed forward.
FlopsRule rule_of(const TrainedModel& model, bool recompute);

// Returns the counted FLOP/s of all devices: devices x peak x MFU.
Estimate flops_per_second(const TrainingPlan& plan);
// Returns the seconds of a training with so many FLOPs per token.
Estimate training_seconds(const TrainingPlan& plan, double flops_per_token);

// --- energy and what follows -----------------------------------------------------------------------------------------

// Returns the load of devices that train: mean power = idle + (peak - idle) x load. Its source names measurements.
const cluster::Figure& training_load();
// Returns the emissions of driving a car, in kg of CO2 per m.
const cluster::Figure& car_emissions();

// The costs of one training.
struct TrainingCosts {
  Estimate seconds;
  Estimate device_seconds;
  Estimate power;            // W of the computers: devices, and the rest of each node of which a device is used
  Estimate computer_energy;  // J
  Estimate energy;           // J of the site, which is computer_energy x PUE
  Estimate emissions;        // kg CO2e of the site's electricity; that of making the computers is not counted
  Estimate water;            // m^3
  Estimate electricity;      // euros
  Estimate device_hours;     // euros, where the site charges them
  Estimate car;              // m that a car drives for the same emissions
};
Estimate computer_power(const TrainingPlan& plan);
// The consequences of what a job takes of a site: the energy of its computers, and the time of its devices.
struct SiteCosts {
  Estimate energy;        // J of the site, which is the computers' energy x PUE
  Estimate emissions;     // kg CO2e of the site's electricity
  Estimate water;         // m^3
  Estimate electricity;   // euros
  Estimate device_hours;  // euros, where the site charges them; 0 where it does not
  Estimate money() const { return electricity + device_hours; }
};
// `device_seconds`: the job's seconds times its devices.
SiteCosts site_costs(const cluster::Site& site, const Estimate& computer_energy, const Estimate& device_seconds);
TrainingCosts training_costs(const TrainingPlan& plan, double flops_per_token);

// The rule of thumb of Dash et al. (arXiv 2312.12705; and the training series of the same group): a model with N
// parameters takes 120 N^2 FLOPs if it is trained on 20 N tokens with 6 N FLOPs each, so energy grows as N^2. Their
// estimates for MI250X cards, 284 GJ for 22 B, 17.65 TJ for 175 B and 662 TJ for 1 T, give the joules per N^2.
struct FrontierRule {
  double optimal_flops = 0.0;  // 120 N^2
  Estimate optimal_energy;     // J of the cards alone, without hosts and PUE, on 20 N tokens
  Estimate energy;             // the same on the plan's tokens
};
FrontierRule frontier_rule(double parameters, double tokens);

// --- memory ----------------------------------------------------------------------------------------------------------

// Bytes per parameter in mixed-precision training with AdamW.
struct StateBytes {
  std::string_view name;
  double weights, master, gradients, moments;  // 16-bit weights; their fp32 copies; gradients; both moments in fp32
  double total() const { return weights + master + gradients + moments; }
};
// kZeroPaper: 16-bit gradients, 2 + 2 + 12 bytes (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1).
// kWideGradients: gradients are summed in fp32, 6 + 4 + 8 bytes with the copies counted as parameters (the table of the
// Frontier training series, whose parts sum to 18).
inline constexpr StateBytes kZeroPaper{"16-bit gradients", 2, 4, 2, 8};
inline constexpr StateBytes kWideGradients{"fp32 gradients", 2, 4, 4, 8};
inline constexpr std::array kStateBytes{kZeroPaper, kWideGradients};
// Returns the bytes of one device with `stage` 0 to 3 of ZeRO over n devices (Rajbhandari et al. 2020, section 5):
// 1 partitions masters and moments, 2 also gradients, 3 also weights. Activations are not included.
double zero_bytes(const StateBytes& bytes, int stage, double parameters, int n);

// --- loss ------------------------------------------------------------------------------------------------------------

// A law L(N, D) = E + A / N^alpha + B / D^beta for the loss in nats per token. It holds for the data, the vocabulary
// and the models to which it was fitted.
struct ScalingLaw {
  std::string_view name;
  double e, a, b, alpha, beta;
  double loss(double parameters, double tokens) const;
};
// Hoffmann et al. 2022 (arXiv 2203.15556), approach 3; and Besiroglu et al. 2024 (arXiv 2404.10102), who fitted the
// same data again.
std::span<const ScalingLaw> scaling_laws();
// Tokens per parameter that Hoffmann et al. 2022 found optimal for a given amount of compute.
inline constexpr double kOptimalTokens = 20.0;

// --- batch size ------------------------------------------------------------------------------------------------------

// A batch size and what it costs (McCandlish et al. 2018, arXiv 1812.06162, section 2.3): to the same loss, a batch of
// B tokens takes S_min (1 + B_crit / B) steps and E_min (1 + B / B_crit) tokens, where B_crit = E_min / S_min is about
// the noise scale. The plan's tokens are E_min, which a small batch needs.
struct BatchRow {
  double batch = 0.0;        // tokens of a step
  double token_ratio = 0.0;  // of E_min
  double step_ratio = 0.0;   // of S_min
  double tokens = 0.0, steps = 0.0;
  Estimate step_seconds;  // at the plan's MFU and devices
  Estimate seconds;       // until the loss is reached
};
// Returns the rows for 1/8 to 8 times the noise scale and for the plan's own batch, by ascending batch. Returns none
// without a noise scale.
std::vector<BatchRow> batch_rows(const TrainingPlan& plan, double flops_per_token);

// --- the report ------------------------------------------------------------------------------------------------------

struct FlopsRow {
  FlopsRule rule{};
  double per_token = 0.0;
  Estimate seconds;
};
struct ModelReport {
  TrainedModel model;
  FlopsRule rule{};  // from which the costs follow
  std::vector<FlopsRow> flops;
  TrainingCosts costs;
  FrontierRule frontier;
  std::vector<double> losses;   // by law; empty for sparse models, to which no law was fitted
  double optimal_tokens = 0.0;  // multiples of 20 N that are read
  std::vector<BatchRow> batches;
};
// Seconds of trainings by sizes and tokens, with 6 N (8 N with recompute) FLOPs per token. All have the same relative
// spread.
struct DaysTable {
  std::vector<TrainedModel> models;
  std::vector<double> tokens;                  // ascending
  std::vector<std::vector<Estimate>> seconds;  // [model][tokens]
};
struct CalculusReport {
  TrainingPlan plan;
  std::vector<ModelReport> models;
  DaysTable days;
};
// Returns the sizes of the figure of the GPT-NL project, 1, 2, 7, 13, 30 and 70 B.
std::vector<TrainedModel> figure_models();
// Returns the columns of that figure, 200 to 1,400 B, and `tokens`.
std::vector<double> figure_tokens(double tokens);
DaysTable days_table(const TrainingPlan& plan, std::vector<TrainedModel> models, std::vector<double> tokens);
// Returns the whole calculation. Throws the errors of `validate`. The rows of the days table are by ascending size; if
// only one model is asked for, the models of the figure are there too.
CalculusReport calculate(const TrainingPlan& plan, const std::vector<TrainedModel>& models);

}  // namespace molen::plan
