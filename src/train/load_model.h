// A model for inference, from a run, a checkpoint or a Hugging Face directory.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "train/inference.h"

namespace molen::train {

struct LoadedModel {
  std::shared_ptr<const Weights> weights;
  std::optional<data::Tokenizer> tokenizer;  // the one that lies with the model
  std::string origin;                        // what was loaded, for people
};

// Weights in fp32 (fp64 with `dtype`). Throws UsageError where there is no model under `path`.
LoadedModel load_model(const fs::path& path, DType dtype = DType::kF32);

}  // namespace molen::train
