// The functions of `molen generate` and `molen eval`, without the command line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "infer/load_model.h"

namespace molen::infer {

struct GenerateOptions {
  Sampling sampling;
  std::int64_t max_tokens = 128;
  std::vector<std::string> stops;  // generation ends before the first of these strings
  bool use_cache = true;           // false: run the whole sequence again for each token (slow; for comparison)
  int threads = 0;                 // 0: the machine's cores
};

// Continues `prompt`; `emit` receives valid UTF-8 as it is generated (invalid bytes become U+FFFD). Returns the
// continuation. Generation ends at the end-of-text token, a stop string, max_tokens or the model's longest sequence.
std::string generate(const LoadedModel& model, const std::string& prompt, const GenerateOptions& options,
                     const std::function<void(const std::string&)>& emit);

struct EvalLogitsOptions {
  fs::path model, tokens, output;  // tokens: JSON array of token-id arrays of equal length
  int threads = 0;
};
// Writes one tensor, `logits` [batch, sequence, vocabulary], in fp32.
void eval_logits(const EvalLogitsOptions& options);

}  // namespace molen::infer
