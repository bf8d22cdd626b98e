#include "train/state/training_state.h"

#include "base/error.h"
#include "base/json_fields.h"

namespace molen::train {

TrainingState::TrainingState(const config::Config& config)
    : loss_scale({config.precision.loss_scale, 0, 0}, config.precision.loss_scale_window) {}

void TrainingState::restore(const Json& state, const std::string& origin, const config::Config& config) {
  try {
    const JsonFields fields(state, origin + "/state.json");
    step = fields.integer("step_done");
    next_sample = fields.integer("next_sample");
    tokens_total = fields.integer("tokens_total");
    restore_loss_scale(state, origin, config);
    if (const auto noise = state.find("noise_scale"); noise != state.end())
      noise_scale = NoiseScale::from_json(*noise, origin + "/state.json: noise_scale");
    totals = state.at("totals");
    if (state.contains("budget")) budget = state.at("budget");
  } catch (const Json::exception& e) {
    throw UsageError("{}: state.json is incomplete: {}", origin, e.what());
  }
}

// A run whose loss was never scaled saved no loss scale. A run that continues it in fp16 (--allow-change) begins with
// the scale of the configuration.
void TrainingState::restore_loss_scale(const Json& state, const std::string& origin, const config::Config& config) {
  if (!state.contains("loss_scale")) {
    if (config::from_json(state.at("config"), origin).precision.scales_loss())
      throw UsageError("{}: state.json is incomplete: no loss_scale of a run in fp16", origin);
    return;
  }
  const std::string where = origin + "/state.json: loss_scale";
  const JsonFields fields(state.at("loss_scale"), where);
  const optim::LossScale::State stored{fields.number("scale"), fields.integer("good_steps"),
                                       fields.integer("skipped_steps")};
  if (stored.skipped > step) throw UsageError("{}: {} of {} steps skipped", where, stored.skipped, step);
  try {
    loss_scale = optim::LossScale(stored, config.precision.loss_scale_window);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", where, error.what());
  }
}

Json TrainingState::to_json(bool scales_loss) const {
  Json state{{"step_done", step}, {"next_sample", next_sample}, {"tokens_total", tokens_total}};
  // Also saved when this run scales no loss but an earlier part of it skipped steps: the optimizer counts updates,
  // which are fewer than steps.
  if (const auto& scale = loss_scale.state(); scales_loss || scale.skipped > 0)
    state["loss_scale"] = {{"scale", scale.scale}, {"good_steps", scale.good_steps}, {"skipped_steps", scale.skipped}};
  if (!noise_scale.pairs().empty()) state["noise_scale"] = noise_scale.to_json();
  return state;
}

}  // namespace molen::train
