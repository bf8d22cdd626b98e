// The parameter list of both families, in storage order.
#include "arch/parameters.h"

#include <fmt/format.h>

#include <cmath>

namespace molen::arch {
namespace {

class Builder {
 public:
  explicit Builder(const Architecture& arch) : arch_(arch) {
    residual_std_ = arch.init_std / std::sqrt(2.0 * static_cast<double>(arch.layers));
  }

  std::vector<Parameter> build() {
    matrix("model.embed_tokens.weight", Role::kEmbedding, arch_.vocabulary, arch_.hidden, ShardDim::kRows);
    if (arch_.position == Position::kLearned) {
      matrix("model.embed_positions.weight", Role::kPositions, arch_.max_sequence, arch_.hidden, ShardDim::kNone);
      list_.back().decay = false;  // a table of offsets, not a factor of a product
    }
    for (layer_ = 0; layer_ < arch_.layers; ++layer_) layer();
    layer_ = -1;
    norm("model.norm", Role::kFinalNorm, Role::kFinalNormBias);
    if (!arch_.tied) matrix("lm_head.weight", Role::kHead, arch_.vocabulary, arch_.hidden, ShardDim::kRows);
    return std::move(list_);
  }

 private:
  // The weights of a fused product are adjacent, followed by their biases: q|k|v and gate|up are one matrix (and
  // vector) each.
  void layer() {
    const std::string prefix = fmt::format("model.layers.{}.", layer_);
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    norm(prefix + "input_layernorm", Role::kAttentionNorm, Role::kAttentionNormBias);
    matrix(attention + "q_proj.weight", Role::kQuery, arch_.query_size(), arch_.hidden, ShardDim::kRows);
    matrix(attention + "k_proj.weight", Role::kKey, arch_.kv_size(), arch_.hidden, ShardDim::kRows);
    matrix(attention + "v_proj.weight", Role::kValue, arch_.kv_size(), arch_.hidden, ShardDim::kRows);
    bias(attention + "q_proj.bias", Role::kQueryBias, arch_.query_size(), ShardDim::kRows);
    bias(attention + "k_proj.bias", Role::kKeyBias, arch_.kv_size(), ShardDim::kRows);
    bias(attention + "v_proj.bias", Role::kValueBias, arch_.kv_size(), ShardDim::kRows);
    if (arch_.norms_qk()) {
      // A weight that all heads share is the same on all tensor ranks. A weight with values for all heads is cut as the
      // heads are.
      const ShardDim shard = arch_.qk_norm == QkNorm::kAll ? ShardDim::kRows : ShardDim::kNone;
      vector(attention + "q_norm.weight", Role::kQueryNorm, arch_.query_norm_size(), Init::kOnes, shard);
      vector(attention + "k_norm.weight", Role::kKeyNorm, arch_.key_norm_size(), Init::kOnes, shard);
    }
    matrix(attention + "o_proj.weight", Role::kOutput, arch_.hidden, arch_.query_size(), ShardDim::kColumns);
    list_.back().init_std = residual_std_;
    bias(attention + "o_proj.bias", Role::kOutputBias, arch_.hidden, ShardDim::kNone);
    norm(prefix + "post_attention_layernorm", Role::kMlpNorm, Role::kMlpNormBias);
    arch_.sparse(layer_) ? experts(mlp) : dense(mlp);
  }

  void dense(const std::string& mlp) {
    if (arch_.gated()) matrix(mlp + "gate_proj.weight", Role::kGate, arch_.ffn, arch_.hidden, ShardDim::kRows);
    matrix(mlp + "up_proj.weight", Role::kUp, arch_.ffn, arch_.hidden, ShardDim::kRows);
    bias(mlp + "up_proj.bias", Role::kUpBias, arch_.ffn, ShardDim::kRows);
    matrix(mlp + "down_proj.weight", Role::kDown, arch_.hidden, arch_.ffn, ShardDim::kColumns);
    list_.back().init_std = residual_std_;
    bias(mlp + "down_proj.bias", Role::kDownBias, arch_.hidden, ShardDim::kNone);
  }

  // The order is that of Qwen3-MoE, OLMoE, DeepSeek-V2 and -V3. Gate|up of all experts are one matrix, and so are their
  // down projections, because grouped products read one matrix (math/experts.h).
  void experts(const std::string& mlp) {
    const Experts& e = arch_.sparse_experts();
    matrix(mlp + "gate.weight", Role::kRouter, e.count, arch_.hidden, ShardDim::kNone);
    if (arch_.biases_router())
      vector(mlp + "gate.e_score_correction_bias", Role::kRouterBias, e.count, Init::kZeros, ShardDim::kNone);
    const auto name = [&](const char* which) {
      return fmt::format("{}experts.{}.{}_proj.weight", mlp, expert_, which);
    };
    for (expert_ = 0; expert_ < e.count; ++expert_) {
      if (arch_.gated()) matrix(name("gate"), Role::kExpertGate, e.ffn, arch_.hidden, ShardDim::kRows);
      matrix(name("up"), Role::kExpertUp, e.ffn, arch_.hidden, ShardDim::kRows);
    }
    for (expert_ = 0; expert_ < e.count; ++expert_) {
      matrix(name("down"), Role::kExpertDown, arch_.hidden, e.ffn, ShardDim::kColumns);
      list_.back().init_std = residual_std_;
    }
    expert_ = -1;
    if (e.shared == 0) return;
    const std::string shared = mlp + "shared_experts.";
    const std::int64_t width = arch_.shared_ffn();
    if (arch_.gated()) matrix(shared + "gate_proj.weight", Role::kSharedGate, width, arch_.hidden, ShardDim::kRows);
    matrix(shared + "up_proj.weight", Role::kSharedUp, width, arch_.hidden, ShardDim::kRows);
    matrix(shared + "down_proj.weight", Role::kSharedDown, arch_.hidden, width, ShardDim::kColumns);
    list_.back().init_std = residual_std_;
  }

  void matrix(std::string name, Role role, std::int64_t rows, std::int64_t columns, ShardDim shard) {
    list_.push_back({.name = std::move(name),
                     .role = role,
                     .shape = {rows, columns},
                     .layer = layer_,
                     .expert = expert_,
                     .init = Init::kNormal,
                     .init_std = arch_.init_std,
                     .decay = true,
                     .shard = shard});
  }

  void vector(std::string name, Role role, std::int64_t size, Init init, ShardDim shard) {
    list_.push_back({.name = std::move(name),
                     .role = role,
                     .shape = {size},
                     .layer = layer_,
                     .init = init,
                     .init_std = 0.0,
                     .decay = false,
                     .shard = shard});
  }

  void bias(std::string name, Role role, std::int64_t size, ShardDim shard) {
    if (arch_.biases) vector(std::move(name), role, size, Init::kZeros, shard);
  }

  void norm(const std::string& name, Role weight, Role bias_role) {
    if (arch_.norm == Norm::kLayerPlain) return;
    vector(name + ".weight", weight, arch_.hidden, Init::kOnes, ShardDim::kNone);
    if (arch_.norm == Norm::kLayer) vector(name + ".bias", bias_role, arch_.hidden, Init::kZeros, ShardDim::kNone);
  }

  const Architecture& arch_;
  double residual_std_ = 0.0;
  std::int64_t layer_ = -1, expert_ = -1;
  std::vector<Parameter> list_;
};

}  // namespace

std::int64_t Parameter::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<Parameter> parameters(const Architecture& arch) {
  validate(arch);
  return Builder(arch).build();
}

std::int64_t num_parameters(const Architecture& arch) {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters(arch))
    if (!moved_by_load(parameter.role)) total += parameter.elements();
  return total;
}

std::int64_t num_active_parameters(const Architecture& arch) {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters(arch))
    if (!moved_by_load(parameter.role) && (parameter.expert < 0 || parameter.expert < arch.sparse_experts().per_token))
      total += parameter.elements();
  return total;
}

}  // namespace molen::arch
