// The functions of `molen generate` and `molen eval`, without the command line.
#pragma once

#include <functional>
#include <string>

#include "infer/load_model.h"
#include "infer/options.h"

namespace molen::infer {

// Continues `prompt`; `emit` receives valid UTF-8 as it is generated (invalid bytes become U+FFFD). Returns the
// continuation. Generation ends at the end-of-text token, a stop string, max_tokens or the model's longest sequence.
std::string generate(const LoadedModel& model, const std::string& prompt, const GenerateOptions& options,
                     const std::function<void(const std::string&)>& emit);

// Writes one tensor, `logits` [batch, sequence, vocabulary], in fp32.
void eval_logits(const EvalLogitsOptions& options);

}  // namespace molen::infer
