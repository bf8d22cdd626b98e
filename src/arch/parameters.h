// The single list of a model's parameters, from which initialisation, sharding, optimizer, checkpoint names, FLOPs and
// byte counts follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arch/architecture.h"

namespace molen::arch {

enum class Init { kOnes, kZeros, kNormal };

// How tensor parallelism splits a parameter: by output rows (dim 0), by input columns (dim 1), or not at all.
enum class ShardDim { kNone, kRows, kColumns };

// The role of a parameter, for code that finds "the query weight of layer 3" without parsing names.
enum class Role {
  kEmbedding,
  kPositions,
  kAttentionNorm,
  kAttentionNormBias,
  kQuery,
  kKey,
  kValue,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kQueryNorm,
  kKeyNorm,
  kOutput,
  kOutputBias,
  kMlpNorm,
  kMlpNormBias,
  kGate,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kRouter,  // the router of a sparse layer; then the matrices of each expert
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,  // shared experts, as one MLP
  kSharedUp,
  kSharedDown,
  kFinalNorm,
  kFinalNormBias,
  kHead,
};

// Returns whether the parameter belongs to one of the experts among which the router chooses.
constexpr bool of_expert(Role role) {
  return role == Role::kExpertGate || role == Role::kExpertUp || role == Role::kExpertDown;
}
// Returns whether the parameter belongs to a norm of the residual stream. Norms of queries and keys, which no product
// of their own follows, are not included.
constexpr bool of_norm(Role role) {
  return role == Role::kAttentionNorm || role == Role::kAttentionNormBias || role == Role::kMlpNorm ||
         role == Role::kMlpNormBias || role == Role::kFinalNorm || role == Role::kFinalNormBias;
}

// Returns whether the parameter is the bias of a router. Such a bias is listed, stored and sent as a parameter is, but
// no gradient trains it. Instead of a gradient it has the number of tokens of each expert, and each step moves it by
// the sign of these numbers' error (Experts::bias_rate).
constexpr bool moved_by_load(Role role) {
  return role == Role::kRouterBias;
}

struct Parameter {
  std::string name;  // Hugging Face's Llama naming, both families ("model.layers.0.self_attn.q_proj.weight");
                     // GPT adds ".bias" and "model.embed_positions.weight". Export renames to GPT-2's own.
  Role role{};
  std::vector<std::int64_t> shape;  // linear weights are [out, in]
  std::int64_t layer = -1;          // -1: outside the layers
  std::int64_t expert = -1;         // index of the expert in the layer; -1: of no expert
  Init init = Init::kNormal;
  double init_std = 0.0;  // for kNormal; output projections are scaled by 1/sqrt(2 L)
  bool decay = false;  // weight decay applies: to every matrix, including embedding and head (as in Megatron-LM); not
                       // to learned positions, norms, biases
  ShardDim shard = ShardDim::kNone;
  std::int64_t elements() const;
  bool operator==(const Parameter&) const = default;
};

// Returns the parameters in storage order: embedding, [positions], each layer (norm, q, k, v, [norms of q and k], o,
// norm, gate, up, down; a sparse layer: norm, router, [bias of the router], gate and up of each expert, down of each,
// gate, up and down of the shared experts; the biases of a group come after all its weights, so that q|k|v and gate|up
// are contiguous matrices and vectors), final norm, head (absent when tied).
std::vector<Parameter> parameters(const Architecture& arch);
// Return the number of parameters. Neither function counts the biases of routers.
std::int64_t num_parameters(const Architecture& arch);
// Counts the parameters that take part in the computation of one token: all except the experts that are not chosen for
// the token.
std::int64_t num_active_parameters(const Architecture& arch);

}  // namespace molen::arch
