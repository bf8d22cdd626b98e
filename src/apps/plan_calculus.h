// `molen plan --calculus`: what a training takes, by formulas.
#pragma once

#include <optional>
#include <string>

#include "apps/cli.h"

namespace molen::apps {

struct CalculusArguments {
  std::string sizes, tokens, cluster, noise_scale, format = "text", plot;
  std::optional<int> nodes, devices;
  std::string mfu = "0.4";  // or "simulated"
  std::optional<double> mfu_spread;
  bool recompute = false;
};

// Returns the tokens of train.until if the configuration sets it, in tokens or in steps.
std::optional<double> tokens_until(const config::Config& config);

// Returns the tokens that --noise-scale gives, such as "4M", or that the run which it names has measured last. Throws
// UsageError.
double noise_scale_of(const std::string& text);

int run_calculus(const ConfigOptions& options, const CalculusArguments& arguments);

}  // namespace molen::apps
