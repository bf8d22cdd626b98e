// Tests what a checkpoint's state says of the loss scale and of the noise scale.
#include "train/state/training_state.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"

namespace molen::train {
namespace {

config::Config config_of(const std::string& compute) {
  return config::parse("[precision]\ncompute = \"" + compute + "\"\n", "here");
}

Json state_of(const config::Config& config, const std::optional<Json>& loss_scale) {
  Json state{{"step_done", 5},
             {"next_sample", 40},
             {"tokens_total", 320},
             {"totals", Json::object()},
             {"config", config::to_json(config)}};
  if (loss_scale) state["loss_scale"] = *loss_scale;
  return state;
}

TEST(TrainingStates, ARunInFp16HasItsLossScale) {
  const auto fp16 = config_of("fp16"), bf16 = config_of("bf16");
  TrainingState state(fp16);
  const Json scale{{"scale", 128.0}, {"good_steps", 4}, {"skipped_steps", 2}};
  state.restore(state_of(fp16, scale), "origin", fp16);
  EXPECT_EQ(state.loss_scale.scale(), 128.0);
  EXPECT_EQ(state.loss_scale.skipped(), 2);
  EXPECT_EQ(state.step, 5);
  EXPECT_EQ(state.next_sample, 40);
  EXPECT_EQ(state.tokens_total, 320);
  try {
    TrainingState(fp16).restore(state_of(fp16, std::nullopt), "origin", fp16);
    ADD_FAILURE() << "a state that lacks its loss scale is incomplete";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "origin: state.json is incomplete: no loss_scale of a run in fp16");
  }
  // A run that was in bf16 saved none, and goes on in fp16 with the configured one.
  TrainingState changed(fp16);
  changed.restore(state_of(bf16, std::nullopt), "origin", fp16);
  EXPECT_EQ(changed.loss_scale.scale(), fp16.precision.loss_scale);
  EXPECT_THROW(TrainingState(fp16).restore(
                   state_of(fp16, Json{{"scale", 128.0}, {"good_steps", 0}, {"skipped_steps", 6}}), "origin", fp16),
               UsageError)
      << "6 of 5 steps skipped";
}

TEST(TrainingStates, TheNoiseScaleGoesOn) {
  const auto config = config_of("bf16");
  TrainingState before(config);
  EXPECT_FALSE(before.to_json(false).contains("noise_scale"));
  before.noise_scale.add({8.0, 64.0, 2.0, 1.0});
  before.noise_scale.add({7.0, 64.0, 2.5, 1.25});
  Json state = state_of(config, std::nullopt);
  state.update(before.to_json(false));
  TrainingState after(config);
  after.restore(state, "origin", config);
  EXPECT_EQ(after.noise_scale.pairs(), before.noise_scale.pairs());
  state["noise_scale"][1]["small_tokens"] = 64.0;
  try {
    TrainingState(config).restore(state, "origin", config);
    ADD_FAILURE() << "a small batch is smaller than the large one";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "origin/state.json: noise_scale[1]: no pair of gradient norms");
  }
}

}  // namespace
}  // namespace molen::train
