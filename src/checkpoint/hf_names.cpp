// Maps our parameters to tensors of a Hugging Face directory.
#include <map>

#include "arch/parameters.h"
#include "base/error.h"
#include "checkpoint/huggingface.h"

namespace molen::checkpoint {
namespace {

using arch::Parameter;
using arch::Role;

struct Gpt2Name {
  std::string_view name;  // after "transformer." or "transformer.h.N."
  bool transposed = false;
};

Gpt2Name gpt2_name(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return {"wte.weight"};
    case Role::kPositions:
      return {"wpe.weight"};
    case Role::kAttentionNorm:
      return {"ln_1.weight"};
    case Role::kAttentionNormBias:
      return {"ln_1.bias"};
    case Role::kQuery:
    case Role::kKey:
    case Role::kValue:
      return {"attn.c_attn.weight", true};
    case Role::kQueryBias:
    case Role::kKeyBias:
    case Role::kValueBias:
      return {"attn.c_attn.bias"};
    case Role::kOutput:
      return {"attn.c_proj.weight", true};
    case Role::kOutputBias:
      return {"attn.c_proj.bias"};
    case Role::kMlpNorm:
      return {"ln_2.weight"};
    case Role::kMlpNormBias:
      return {"ln_2.bias"};
    case Role::kUp:
      return {"mlp.c_fc.weight", true};
    case Role::kUpBias:
      return {"mlp.c_fc.bias"};
    case Role::kDown:
      return {"mlp.c_proj.weight", true};
    case Role::kDownBias:
      return {"mlp.c_proj.bias"};
    case Role::kFinalNorm:
      return {"ln_f.weight"};
    case Role::kFinalNormBias:
      return {"ln_f.bias"};
    case Role::kQueryNorm:
    case Role::kKeyNorm:
    case Role::kGate:
    case Role::kRouter:
    case Role::kRouterBias:
    case Role::kExpertGate:
    case Role::kExpertUp:
    case Role::kExpertDown:
    case Role::kSharedGate:
    case Role::kSharedUp:
    case Role::kSharedDown:
    case Role::kHead:
      break;
  }
  throw Error("no GPT-2 name for this parameter");
}

// Parameters that share a name in GPT-2 are stacked in the order of the list, which is q, k, v.
std::vector<HfTensor> gpt2_tensors(const std::vector<Parameter>& parameters) {
  std::vector<HfTensor> tensors;
  std::map<std::string, std::size_t> by_name;
  for (const Parameter& p : parameters) {
    if (p.role == Role::kHead) {
      tensors.push_back({p.name, p.shape, false, {p.name}});
      continue;
    }
    const auto [suffix, transposed] = gpt2_name(p.role);
    const std::string name =
        p.layer < 0 ? fmt::format("transformer.{}", suffix) : fmt::format("transformer.h.{}.{}", p.layer, suffix);
    const auto [found, is_new] = by_name.emplace(name, tensors.size());
    if (is_new) tensors.push_back({name, p.shape, transposed, {p.name}});
    if (is_new && transposed) std::swap(tensors.back().shape[0], tensors.back().shape[1]);
    if (is_new) continue;
    HfTensor& stacked = tensors[found->second];
    stacked.shape[transposed ? 1 : 0] += p.shape[0];
    stacked.parts.push_back(p.name);
  }
  return tensors;
}

// Returns Mixtral's name. Our own names are those of Qwen3-MoE and OLMoE.
std::string mixtral_name(const Parameter& p) {
  const std::string block = fmt::format("model.layers.{}.block_sparse_moe.", p.layer);
  switch (p.role) {
    case Role::kRouter:
      return block + "gate.weight";
    case Role::kExpertGate:
      return fmt::format("{}experts.{}.w1.weight", block, p.expert);
    case Role::kExpertDown:
      return fmt::format("{}experts.{}.w2.weight", block, p.expert);
    case Role::kExpertUp:
      return fmt::format("{}experts.{}.w3.weight", block, p.expert);
    default:
      return p.name;
  }
}

}  // namespace

std::vector<HfTensor> hf_tensors(const arch::Architecture& arch) {
  const std::vector<Parameter> parameters = arch::parameters(arch);
  if (arch.position == arch::Position::kLearned) return gpt2_tensors(parameters);
  std::vector<HfTensor> tensors;
  const bool mixtral = is_mixtral(arch);
  for (const Parameter& p : parameters)
    tensors.push_back({mixtral ? mixtral_name(p) : p.name, p.shape, false, {p.name}});
  return tensors;
}

}  // namespace molen::checkpoint
