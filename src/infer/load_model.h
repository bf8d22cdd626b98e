// Loads a model for inference from a run, a checkpoint or a Hugging Face directory.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/inference.h"

namespace molen::infer {

struct LoadedModel {
  std::shared_ptr<const Weights> weights;
  std::optional<data::Tokenizer> tokenizer;  // the tokenizer stored with the model
  std::string origin;                        // a readable description of what was loaded
};

// Loads weights in fp32, or in fp64 with `dtype`. Throws UsageError when there is no model under `path`.
LoadedModel load_model(const fs::path& path, DType dtype = DType::kF32);

}  // namespace molen::infer
