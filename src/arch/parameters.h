// The single parameter list, which initialisation, sharding, optimizer, checkpoint names, FLOPs and byte counts read.
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
  kRouter,  // of a sparse layer, and the matrices of each of its experts
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,  // of the experts that every token meets, as one MLP
  kSharedUp,
  kSharedDown,
  kFinalNorm,
  kFinalNormBias,
  kHead,
};

// One of the experts of which each token chooses some.
constexpr bool of_expert(Role role) {
  return role == Role::kExpertGate || role == Role::kExpertUp || role == Role::kExpertDown;
}
// Norms of the residual stream; those of queries and keys have no product of their own behind them.
constexpr bool of_norm(Role role) {
  return role == Role::kAttentionNorm || role == Role::kAttentionNormBias || role == Role::kMlpNorm ||
         role == Role::kMlpNormBias || role == Role::kFinalNorm || role == Role::kFinalNormBias;
}

// A bias of a router is listed, stored and sent as a parameter is, but it is none: in the place of a gradient it has
// the number of tokens of each expert, and steps move it by the sign of their error (Experts::bias_rate).
constexpr bool moved_by_load(Role role) {
  return role == Role::kRouterBias;
}

struct Parameter {
  std::string name;  // Hugging Face's Llama naming, both families ("model.layers.0.self_attn.q_proj.weight");
                     // GPT adds ".bias" and "model.embed_positions.weight". Export renames to GPT-2's own.
  Role role{};
  std::vector<std::int64_t> shape;  // Linear weights are [out, in]
  std::int64_t layer = -1;          // -1: outside the layers
  std::int64_t expert = -1;         // of the layer; -1: of no expert
  Init init = Init::kNormal;
  double init_std = 0.0;  // for kNormal; output projections are scaled by 1/sqrt(2 L)
  bool decay = false;     // weight decay applies: every matrix, including embedding and head (as Megatron-LM); not
                          // learned positions, norms, biases
  ShardDim shard = ShardDim::kNone;
  std::int64_t elements() const;
  bool operator==(const Parameter&) const = default;
};

// Returns the parameters in storage order: embedding, [positions], each layer (norm, q, k, v, [norms of q and k], o,
// norm, gate, up, down; a sparse layer: norm, router, [bias of the router], gate and up of each expert, down of each,
// gate, up and down of the shared experts; the biases of a group come after all its weights, so that q|k|v and gate|up
// are contiguous matrices and vectors), final norm, head (absent when tied).
std::vector<Parameter> parameters(const Architecture& arch);
// Both leave out the biases of routers.
std::int64_t num_parameters(const Architecture& arch);
// Counts the parameters that take part in the computation of one token: it meets only the experts that it chooses.
std::int64_t num_active_parameters(const Architecture& arch);

}  // namespace molen::arch
