// The progress of a training apart from its tensors, which a checkpoint keeps in state.json. It is the same on every
// rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "config/config.h"
#include "optim/loss_scale.h"
#include "train/state/noise_scale.h"

namespace molen::train {

struct TrainingState {
  // The state before the first step.
  explicit TrainingState(const config::Config& config);
  // `state` comes from checkpoint `origin`, of any layout. Throws UsageError naming `origin` when the state is
  // incomplete.
  void restore(const Json& state, const std::string& origin, const config::Config& config);
  // Returns the keys of a checkpoint's state that `restore` reads, except "config" and "totals".
  Json to_json(bool scales_loss) const;

  std::int64_t step = 0;         // optimizer steps done
  std::int64_t next_sample = 0;  // in the global order
  std::int64_t tokens_total = 0;
  optim::LossScale loss_scale;  // used when Setting::scales_loss
  NoiseScale noise_scale;       // of train.noise_scale_every
  std::optional<Json> budget;   // what EnergyBudget::state returned; older checkpoints have none
  std::optional<Json> totals;   // of the attempts before this one: time, tokens, joules

 private:
  void restore_loss_scale(const Json& state, const std::string& origin, const config::Config& config);
};

}  // namespace molen::train
