// A model without tensors: the sizes and choices from which parameters, FLOPs, bytes and programs follow. Names follow
// the configuration table [model] and Hugging Face's config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace molen::arch {

enum class Family { kLlama, kGpt };
enum class Norm { kRms, kLayer, kLayerPlain };  // kLayerPlain: LayerNorm without weight and bias (OLMo 1)
// RMSNorm of queries and keys before RoPE. kNone: no norm. kHead: over each head's D values, with one weight of D
// values for all query heads and one for all key heads (Qwen3, arXiv 2505.09388). kAll: over the values of all heads
// together, with weights of h D and k D values (OLMo 2, arXiv 2501.00656; OLMoE).
enum class QkNorm { kNone, kHead, kAll };
enum class Position { kRope, kLearned, kAlibi };
enum class Activation { kSwiGlu, kGeluTanh };  // kGeluTanh: Hugging Face's "gelu_new"

// The scores that a router computes from the logits of a token: a softmax over the experts (Mixtral, OLMoE, Qwen3), or
// the sigmoid of each logit (DeepSeek-V3, arXiv 2412.19437, equation 15).
enum class RouterScores { kSoftmax, kSigmoid };

// Llama 3.1's change of the RoPE frequencies (reference: transformers, modeling_rope_utils, "llama3").
struct RopeScaling {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_sequence = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// The experts of a sparse layer, which replace its MLP: a router chooses `per_token` of `count` small MLPs for each
// token (Mixtral, arXiv 2401.04088; OLMoE, arXiv 2409.02060). DeepSeek-V2 (arXiv 2405.04434) has dense layers before
// the sparse layers, and shared experts that compute every token.
struct Experts {
  std::int64_t count = 0;      // E
  std::int64_t per_token = 0;  // t
  std::int64_t ffn = 0;        // w, width of one expert
  bool norm_topk = true;       // the weights of a token's experts are divided by their sum
  // Factors in the objective of the two losses of the router, each a mean over tokens and sparse layers: the balance
  // loss (DeepSeek-V3, arXiv 2412.19437, equations 17 to 20) and the z-loss (ST-MoE, arXiv 2202.08906, equation 5).
  double balance_loss = 0.01, z_loss = 0.0;
  std::int64_t dense_layers = 0;  // number of first layers that have an MLP of width f instead
  std::int64_t shared = 0;  // number of shared experts, which compute every token as one MLP of their summed width
  RouterScores scores = RouterScores::kSoftmax;
  double scale = 1.0;  // factor of the weights of a token's experts
  // Above 0, each expert has a bias that affects only the choice of experts. The bias has no gradient: every step moves
  // it by bias_rate towards equal loads (arXiv 2408.15664).
  double bias_rate = 0.0;
  // Above 0, the capacity factor of Switch Transformers (arXiv 2101.03961, equation 3) and GShard (arXiv 2006.16668):
  // training drops a token's choice of an expert when the expert has already taken its share of the sequence. 0:
  // nothing is dropped.
  double capacity = 0.0;
  bool drops() const { return capacity > 0.0; }
  bool operator==(const Experts&) const = default;
};

// Returns the most tokens of a sequence that an expert takes: `capacity` times its even share, rounded up; without a
// capacity, all tokens.
std::int64_t capacity_of(const Experts& experts, std::int64_t sequence);

// The sequences of a rank: `count` of them, of each of which it has `length` tokens, as have the other context ranks.
struct Sequences {
  std::int64_t count = 0, length = 0;
  int context_ranks = 1;
};
// Returns the most rows that the experts of one of `ranks` expert ranks may get, if each rank has such sequences. For
// each sequence of all ranks, this is the number of times that the rank's tokens of it can choose experts of the rank,
// or the number of these tokens that the experts take if that is less.
std::int64_t most_rows_of_experts(const Experts& experts, const Sequences& sequences, int ranks);
// Returns the same number for `own` experts of a rank.
std::int64_t most_rows_of_experts(const Experts& experts, const Sequences& sequences, int ranks, std::int64_t own);
// Returns the rows that the tokens of a rank have in the order of experts, if context ranks have equal shares of the
// most rows that their sequences can have. All costs assume this number.
std::int64_t even_rows_of_experts(const Experts& experts, const Sequences& sequences);

// Returns the experts [first, second) of one of `tiles` tiles of a rank's `experts`, or all of them when `tile` is -1.
// The tiles are as even as possible. A tile that does not exist has no experts.
std::pair<std::int64_t, std::int64_t> experts_of_tile(std::int64_t experts, std::int64_t tile, std::int64_t tiles);
// Returns how many of `rows` the first `end` of `experts` experts have, if all have equal shares. Rounds down.
constexpr std::int64_t even_share(std::int64_t rows, std::int64_t end, std::int64_t experts) {
  return rows / experts * end + rows % experts * end / experts;
}

struct Architecture {
  std::string name;  // the preset's name, or "custom"
  Family family = Family::kLlama;
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // d
  std::int64_t ffn = 0;         // f, the width of the MLP in a layer without experts
  std::int64_t heads = 0;       // h
  std::int64_t kv_heads = 0;    // k, divides heads
  std::int64_t head_dim = 0;    // D
  std::int64_t vocabulary = 0;  // V
  std::int64_t max_sequence = 0;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  bool tied = false;    // the head shares the embedding table
  bool biases = false;  // on all linear layers except the head
  double norm_eps = 1e-5;
  Norm norm = Norm::kRms;
  QkNorm qk_norm = QkNorm::kNone;
  Position position = Position::kRope;
  Activation activation = Activation::kSwiGlu;
  double init_std = 0.02;
  std::optional<Experts> experts;  // experts of the sparse layers; empty: all layers are dense
  bool operator==(const Architecture&) const = default;

  std::int64_t query_size() const { return heads * head_dim; }
  std::int64_t kv_size() const { return kv_heads * head_dim; }
  std::int64_t qkv_size() const { return query_size() + 2 * kv_size(); }
  bool norms_qk() const { return qk_norm != QkNorm::kNone; }
  // Return the number of values over which one norm of queries, or of keys, is taken. The weights of the norms have the
  // same sizes.
  std::int64_t query_norm_size() const { return qk_norm == QkNorm::kAll ? query_size() : head_dim; }
  std::int64_t key_norm_size() const { return qk_norm == QkNorm::kAll ? kv_size() : head_dim; }
  bool gated() const { return activation == Activation::kSwiGlu; }
  std::int64_t up_size() const { return gated() ? 2 * ffn : ffn; }  // columns of the fused gate|up product
  bool sparse(std::int64_t layer) const { return experts && layer >= experts->dense_layers; }
  bool sparse() const { return experts.has_value(); }      // whether any layer is sparse
  bool dense() const { return sparse_layers() < layers; }  // whether any layer has an MLP instead
  std::int64_t sparse_layers() const { return experts ? layers - experts->dense_layers : 0; }
  const Experts& sparse_experts() const;  // returns the experts of a model that has sparse layers
  // Returns the number of columns of one expert's up projection, gate included.
  std::int64_t expert_up_size() const { return experts ? (gated() ? 2 : 1) * experts->ffn : 0; }
  bool biases_router() const { return experts && experts->bias_rate > 0.0; }
  bool drops_tokens() const { return experts && experts->drops(); }
  bool shares_experts() const { return experts && experts->shared > 0; }
  std::int64_t shared_ffn() const { return experts ? experts->shared * experts->ffn : 0; }
  std::int64_t shared_up_size() const { return (gated() ? 2 : 1) * shared_ffn(); }
};

// Return the names that the configuration and tables use: "llama", "gpt"; "rms", "layer", "layer_plain"; "none",
// "head", "all"; "rope", "learned", "alibi"; "softmax", "sigmoid"; "swiglu", "gelu_tanh".
std::string_view name_of(Family family);
std::string_view name_of(Norm norm);
std::string_view name_of(QkNorm norm);
std::string_view name_of(Position position);
std::string_view name_of(RouterScores scores);
std::string_view name_of(Activation activation);

// Throws UsageError naming the invalid [model] key (not positive, heads % kv_heads != 0, odd head_dim under RoPE, ...).
void validate(const Architecture& arch);

// `presets` returns the named architectures in the order of `molen model list`. `preset` returns one of them, or throws
// UsageError that suggests the nearest name.
const std::vector<Architecture>& presets();
const Architecture& preset(const std::string& name);

}  // namespace molen::arch
