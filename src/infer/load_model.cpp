#include "infer/load_model.h"

#include <ATen/ATen.h>

#include "arch/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/huggingface.h"

namespace molen::infer {
namespace {

void fill_weights(Weights& weights, const checkpoint::TensorSource& source) {
  const c10::InferenceMode inference;
  for (std::size_t i = 0; i < weights.parameters().size(); ++i) {
    const std::string& name = weights.parameters()[i].name;
    at::Tensor target = weights.parameter(i);
    at::Tensor stored = at::empty({target.numel()}, exec::to_aten(source.dtype(name)));
    source.read(name, 0, target.numel(), stored.data_ptr());
    target.view({-1}).copy_(stored);
  }
}

}  // namespace

LoadedModel load_model(const fs::path& path, DType dtype) {
  LoadedModel model;
  if (fs::exists(path / "config.json")) {
    const checkpoint::HfModel hf(path);
    auto weights = std::make_shared<Weights>(hf.arch(), dtype);
    fill_weights(*weights, hf.source());
    model.weights = weights;
    if (const auto file = hf.tokenizer()) model.tokenizer = data::Tokenizer::load(*file);
    model.origin = path.string();
    return model;
  }
  const checkpoint::Checkpoint from(checkpoint::resolve(path));
  const std::string origin = from.path().string();
  auto weights =
      std::make_shared<Weights>(arch::architecture_from_json(json_member(from.state(), "arch", origin), origin), dtype);
  fill_weights(*weights, checkpoint::source_of(from));
  model.weights = weights;
  if (from.has_attachment("tokenizer.json"))
    model.tokenizer = data::Tokenizer::parse(from.attachment("tokenizer.json"), origin + "/tokenizer.json");
  model.origin = origin;
  return model;
}

}  // namespace molen::infer
