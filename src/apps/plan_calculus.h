// `molen plan --calculus`: what a training takes, by formulas.
#pragma once

#include <optional>
#include <string>

#include "apps/cli.h"

namespace molen::apps {

struct CalculusArguments {
  std::string sizes, tokens, cluster, noise_scale, format = "text", plot;
  std::optional<int> nodes, devices;
  double mfu = 0.4, mfu_spread = 0.2;
  bool recompute = false;
};

// Returns the tokens of train.until if the configuration sets it, in tokens or in steps.
std::optional<double> tokens_until(const config::Config& config);

int run_calculus(const ConfigOptions& options, const CalculusArguments& arguments);

}  // namespace molen::apps
