// molen generate, molen eval
#include <fmt/format.h>

#include <cstdio>

#include "apps/compute/functions.h"
#include "infer/generate.h"

namespace molen::apps {

int run_generate(const GenerateCall& c) {
  const auto model = infer::load_model(c.model);
  fmt::print("{}", c.prompt);
  infer::generate(model, c.prompt, c.options, [](const std::string& piece) {
    fmt::print("{}", piece);
    std::fflush(stdout);
  });
  fmt::print("\n");
  return kOk;
}

int run_eval_logits(const infer::EvalLogitsOptions& options) {
  infer::eval_logits(options);
  return kOk;
}

}  // namespace molen::apps
