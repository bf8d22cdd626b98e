#include "apps/plan_calculus.h"

#include "apps/plan_search.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cluster/cluster.h"
#include "config/values.h"
#include "plan/calculus_table.h"
#include "plan/framework.h"
#include "plan/trial.h"
#include "serve/run_data.h"

namespace molen::apps {
namespace {

// Parses "450e9", "450B" or "450B tokens".
double count_of(const std::string& option, std::string_view text, std::string_view noun, std::string_view example) {
  const std::string word(config::trimmed(text));
  const bool named = word.size() > 6 && word.compare(word.size() - 6, 6, "tokens") == 0;
  const auto parsed = config::parse_horizon(named ? word : word + " tokens");
  if (!parsed || parsed.value().unit != config::Horizon::Unit::kTokens || !(parsed.value().value > 0.0))
    throw UsageError("{}: '{}' is not a number of {} above 0; write it as {}", option, word, noun, example);
  return parsed.value().value;
}

std::vector<plan::TrainedModel> models_of_sizes(const std::string& list) {
  std::vector<plan::TrainedModel> models;
  std::stringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    models.push_back(plan::model_of_size(count_of("--sizes", word, "parameters", "7e9 or 7B, with commas between")));
  if (models.empty()) throw UsageError("--sizes: the list is empty; write it as 1e9,7e9 or 1B,7B");
  return models;
}

int devices_of(const CalculusArguments& o, const cluster::Cluster& cluster) {
  if (o.devices) return *o.devices;
  return nodes_on(cluster, o.nodes) * cluster.node.devices;
}

// Applies the model's configuration. The options of the command have precedence over it.
void apply_config(const config::Config& c, plan::TrainingPlan& plan) {
  if (const auto tokens = tokens_until(c)) plan.tokens = *tokens;
  if (c.origins.count("batch.global") > 0)
    plan.batch_tokens = static_cast<double>(c.batch.global * c.data.sequence_length);
  const config::Recompute& recompute = c.parallel.recompute;
  if (recompute.mode == config::Recompute::Mode::kNone) return;
  if (recompute.mode != config::Recompute::Mode::kFull || recompute.every != 1)
    throw UsageError(
        "{}: the calculus has a formula for \"none\" and \"full\" alone; `molen program` counts the FLOPs "
        "of other choices",
        c.where("parallel.recompute"));
  plan.recompute = true;
}

// Returns the share that --mfu gives as a number.
cluster::Figure given_mfu(const CalculusArguments& o) {
  double share = 0.0;
  const char* end = o.mfu.data() + o.mfu.size();
  if (const auto [at, error] = std::from_chars(o.mfu.data(), end, share); error != std::errc() || at != end)
    throw UsageError("--mfu: '{}' is neither a share of the peak, such as 0.4, nor \"simulated\"", o.mfu);
  return {share, o.mfu_spread.value_or(0.2),
          "--mfu and --mfu-spread; 0.4 is what the GPT-NL project planned with, 0.32 what it got"};
}

// Returns the share that the counted FLOPs of the configuration's simulated step reach.
cluster::Figure simulated_mfu(const CalculusArguments& o, const config::Config& c, const plan::TrainingPlan& plan,
                              const plan::TrainedModel& model) {
  if (o.mfu_spread) throw UsageError("--mfu-spread: with --mfu simulated, the spread is that of the simulated step");
  if (o.recompute)
    throw UsageError(
        "--recompute: with --mfu simulated, parallel.recompute of the configuration says what is recomputed");
  const plan::Outcome outcome = plan::predict(c, plan.cluster, plan::machine_on(plan.cluster, plan.devices));
  if (outcome.kind != plan::Outcome::Kind::kStep)
    throw UsageError("--mfu simulated: no step on {} of {}: {}", counted(plan.devices, "device"), plan.cluster.name,
                     outcome.why);
  const plan::StepFigures& step = outcome.figures;
  const double per_token = plan::flops_per_token(model, plan::rule_of(model, plan.recompute)).value();
  const double peak = static_cast<double>(plan.devices) * plan.cluster.device.peak_16bit.value;
  return {per_token * static_cast<double>(step.tokens) / step.step_s / peak, step.high_s / step.step_s - 1.0,
          fmt::format("a simulated step{} of {} with {} tokens, {}", plan::framework_text(" of ", c.framework.kind),
                      human(Seconds(step.step_s)), step.tokens, step.layout)};
}

}  // namespace

std::optional<double> tokens_until(const config::Config& c) {
  if (c.origins.count("train.until") == 0) return std::nullopt;
  const config::Horizon& until = c.train.until;
  if (until.unit == config::Horizon::Unit::kTokens) return until.value;
  if (until.unit == config::Horizon::Unit::kSteps)
    return until.value * static_cast<double>(c.batch.global * c.data.sequence_length);
  return std::nullopt;
}

double noise_scale_of(const std::string& text) {
  if (!fs::is_directory(text)) return count_of("--noise-scale", text, "tokens", "4e6 or 4M");
  const serve::RunData run = serve::read_run(text);
  for (auto event = run.events.rbegin(); event != run.events.rend(); ++event)
    if (serve::text_of(*event, "event") == "noise_scale")
      if (const double tokens = serve::number_of(*event, "tokens"); tokens > 0.0) return tokens;
  throw UsageError("--noise-scale: the run '{}' has measured no noise scale; train it with train.noise_scale_every",
                   text);
}

int run_calculus(const ConfigOptions& options, const CalculusArguments& o) {
  if (o.cluster.empty())
    throw UsageError("--cluster: the name of a cluster, or a file that describes one, is needed; molen has {}",
                     fmt::join(cluster::shipped(), ", "));
  plan::TrainingPlan plan;
  plan.cluster = cluster::find(o.cluster);
  plan.devices = devices_of(o, plan.cluster);
  const bool simulated = o.mfu == "simulated";
  if (!simulated) plan.mfu = given_mfu(o);
  const bool has_config = options.file || options.model || !options.sets.empty();
  std::vector<plan::TrainedModel> models;
  if (has_config) {
    if (!o.sizes.empty()) throw UsageError("--sizes: a configuration or --model already says the size of the model");
    const config::Config c = load_config(options);
    if (!simulated) plan::refuse_framework(c, "a given --mfu simulates no step; --mfu simulated does");
    models.push_back(plan::model_of(plan::resolve_architecture(c), c.data.sequence_length));
    apply_config(c, plan);
    if (simulated) plan.mfu = simulated_mfu(o, c, plan, models.front());
  } else {
    if (simulated)
      throw UsageError(
          "--mfu simulated: the step of a configuration or of --model is simulated, so one of them is needed");
    models = o.sizes.empty() ? plan::figure_models() : models_of_sizes(o.sizes);
  }
  if (!o.tokens.empty()) plan.tokens = count_of("--tokens", o.tokens, "tokens", "450e9 or 450B");
  if (plan.tokens == 0.0)
    throw UsageError("--tokens: the number of tokens to train on is needed, such as 450e9 or 450B{}",
                     has_config ? "; train.until of the configuration does not say it" : "");
  if (!o.noise_scale.empty()) plan.noise_scale = noise_scale_of(o.noise_scale);
  plan.recompute = plan.recompute || o.recompute;
  const plan::CalculusReport report = plan::calculate(plan, models);
  if (!o.plot.empty()) write_file_atomic(o.plot, plan::to_svg(report));
  if (o.format == "json")
    fmt::print("{}\n", plan::to_json(report).dump(2));
  else
    fmt::print("{}", o.format == "markdown" ? plan::to_markdown(plan::tables_of(report))
                                            : plan::to_text(plan::tables_of(report)));
  return kOk;
}

}  // namespace molen::apps
