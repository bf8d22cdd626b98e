// The architectures that can be built, and the names of their choices.
#include "arch/architecture.h"

#include <cmath>
#include <utility>

#include "arch/tensor_parallel.h"
#include "base/error.h"

namespace molen::arch {
namespace {

// These bounds are above every real model, and low enough that no count or byte size computed from them overflows 64
// bits.
constexpr std::int64_t kMaxLayers = 1 << 14;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxExperts = 1 << 16;
constexpr std::int64_t kMaxExpertsOfAllLayers = 1 << 17;  // parameters of experts are listed one by one
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 28;
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 31;

void check_count(const char* key, std::int64_t value, std::int64_t limit) {
  if (value < 1) throw UsageError("model.{}: must be positive, is {}", key, value);
  if (value > limit) throw UsageError("model.{}: {} is beyond the largest size, {}", key, value, limit);
}

void check_positive(const char* key, double value) {
  if (!(std::isfinite(value) && value > 0.0))
    throw UsageError("model.{}: must be positive and finite, is {}", key, value);
}

void check_counts(const Architecture& a) {
  check_count("layers", a.layers, kMaxLayers);
  check_count("hidden", a.hidden, kMaxWidth);
  check_count("ffn", a.ffn, kMaxWidth);
  check_count("heads", a.heads, kMaxWidth);
  check_count("kv_heads", a.kv_heads, kMaxWidth);
  check_count("head_dim", a.head_dim, kMaxWidth);
  check_count("vocabulary", a.vocabulary, kMaxVocabulary);
  check_count("max_sequence", a.max_sequence, kMaxSequence);
}

void check_heads(const Architecture& a) {
  if (a.kv_heads > a.heads || a.heads % a.kv_heads != 0) {
    throw UsageError("model.kv_heads: {} must divide model.heads = {}", a.kv_heads, a.heads);
  }
  if (a.query_size() > kMaxWidth) {
    throw UsageError("model.head_dim: {} heads of {} are {} wide, beyond the largest width, {}", a.heads, a.head_dim,
                     a.query_size(), kMaxWidth);
  }
  if (a.position == Position::kRope && a.head_dim % 2 != 0) {
    throw UsageError("model.head_dim: {} must be even: RoPE turns pairs of dimensions", a.head_dim);
  }
}

void check_rope(const Architecture& a) {
  if (a.position == Position::kRope) check_positive("rope_theta", a.rope_theta);
  if (!a.rope_scaling) return;
  if (a.position != Position::kRope) {
    throw UsageError("model.rope_scaling: needs rotary positions, these are {}", name_of(a.position));
  }
  const RopeScaling& r = *a.rope_scaling;
  check_positive("rope_scaling.factor", r.factor);
  check_positive("rope_scaling.low_freq_factor", r.low_freq_factor);
  check_positive("rope_scaling.high_freq_factor", r.high_freq_factor);
  check_count("rope_scaling.original_max_sequence", r.original_max_sequence, kMaxSequence);
  // Between the two bounds the factor is interpolated over their difference.
  if (!(r.high_freq_factor > r.low_freq_factor)) {
    throw UsageError("model.rope_scaling.high_freq_factor: {} must be above low_freq_factor = {}", r.high_freq_factor,
                     r.low_freq_factor);
  }
}

void check_experts(const Architecture& a) {
  if (!a.experts) return;
  const Experts& e = *a.experts;
  check_count("experts", e.count, kMaxExperts);
  check_count("experts_per_token", e.per_token, kMaxExperts);
  check_count("expert_ffn", e.ffn, kMaxWidth);
  if (e.per_token > e.count)
    throw UsageError("model.experts_per_token: {} of model.experts = {} cannot be chosen", e.per_token, e.count);
  if (e.dense_layers < 0 || e.dense_layers >= a.layers)
    throw UsageError("model.dense_layers: {} of {} layers; at least one layer has the experts", e.dense_layers,
                     a.layers);
  if (e.shared < 0 || e.shared > kMaxExperts)
    throw UsageError("model.shared_experts: must be from 0 to {}, is {}", kMaxExperts, e.shared);
  if (a.shared_ffn() > kMaxWidth)
    throw UsageError("model.shared_experts: {} of width {} are together wider than the largest size, {}", e.shared,
                     e.ffn, kMaxWidth);
  const std::int64_t layers = a.sparse_layers();
  if (layers * e.count > kMaxExpertsOfAllLayers)
    throw UsageError(
        "model.experts: {} in each of {} layers are beyond the largest number of experts of all layers, {}", e.count,
        layers, kMaxExpertsOfAllLayers);
  if (layers * e.count * e.ffn > kMaxLayers * kMaxWidth)
    throw UsageError("model.expert_ffn: {} experts of {} in each of {} layers are together wider than the limit, {}",
                     e.count, e.ffn, layers, kMaxLayers * kMaxWidth);
  for (const auto& [key, factor] : {std::pair{"balance_loss", e.balance_loss},
                                    {"z_loss", e.z_loss},
                                    {"router_bias_rate", e.bias_rate},
                                    {"expert_capacity", e.capacity}})
    if (!(std::isfinite(factor) && factor >= 0.0))
      throw UsageError("model.{}: must be finite and not negative, is {}", key, factor);
  check_positive("router_scale", e.scale);
  if (e.z_loss > 0.0 && e.scores == RouterScores::kSigmoid)
    throw UsageError(
        "model.z_loss: is {}; it is a loss of logits, which the backward of sigmoid scores (model.router_scores) does "
        "not keep; with them it must be 0",
        e.z_loss);
  if (a.biases)
    throw UsageError("model.biases: experts cannot have biases; with model.experts, set model.biases = false");
}

}  // namespace

const Experts& Architecture::sparse_experts() const {
  MOLEN_CHECK(experts, "{} has no sparse layer", name);
  return *experts;
}

std::int64_t capacity_of(const Experts& e, std::int64_t sequence) {
  if (!e.drops()) return sequence;
  const double even = static_cast<double>(e.per_token) * static_cast<double>(sequence) / static_cast<double>(e.count);
  // The nearest double to a factor such as 1.1 is slightly larger than 1.1. This must not round a whole number up.
  const double share = std::ceil(e.capacity * even * (1.0 - 1e-12));
  return share < static_cast<double>(sequence) ? static_cast<std::int64_t>(share) : sequence;
}

std::int64_t most_rows_of_experts(const Experts& e, const Sequences& s, int ranks) {
  return most_rows_of_experts(e, s, ranks, e.count / ranks);
}

std::int64_t most_rows_of_experts(const Experts& e, const Sequences& s, int ranks, std::int64_t own) {
  // The tokens that an expert takes may all be on one of the context ranks.
  const std::int64_t taken = std::min(s.length, capacity_of(e, s.length * s.context_ranks));
  return ranks * s.count * std::min(s.length * std::min(e.per_token, own), own * taken);
}

std::int64_t even_rows_of_experts(const Experts& e, const Sequences& s) {
  const std::int64_t all = most_rows_of_experts(e, {s.count, s.length * s.context_ranks}, 1);
  return (all + s.context_ranks - 1) / s.context_ranks;
}

std::pair<std::int64_t, std::int64_t> experts_of_tile(std::int64_t experts, std::int64_t tile, std::int64_t tiles) {
  if (tile < 0) return {0, experts};
  if (tile >= tiles) return {experts, experts};
  return even_range(experts, static_cast<int>(tile), static_cast<int>(tiles));
}

void validate(const Architecture& a) {
  check_counts(a);
  check_heads(a);
  check_rope(a);
  check_experts(a);
  check_positive("norm_eps", a.norm_eps);
  check_positive("init_std", a.init_std);
  if (a.biases && a.gated()) {
    throw UsageError(
        "model.biases: a gated MLP (SwiGLU) cannot have biases; use the gpt family, or set model.biases = false");
  }
}

std::string_view name_of(Family family) {
  switch (family) {
    case Family::kLlama:
      return "llama";
    case Family::kGpt:
      return "gpt";
  }
  return "?";
}

std::string_view name_of(Norm norm) {
  switch (norm) {
    case Norm::kRms:
      return "rms";
    case Norm::kLayer:
      return "layer";
    case Norm::kLayerPlain:
      return "layer_plain";
  }
  return "?";
}

std::string_view name_of(QkNorm norm) {
  switch (norm) {
    case QkNorm::kNone:
      return "none";
    case QkNorm::kHead:
      return "head";
    case QkNorm::kAll:
      return "all";
  }
  return "?";
}

std::string_view name_of(Position position) {
  switch (position) {
    case Position::kRope:
      return "rope";
    case Position::kLearned:
      return "learned";
    case Position::kAlibi:
      return "alibi";
  }
  return "?";
}

std::string_view name_of(RouterScores scores) {
  switch (scores) {
    case RouterScores::kSoftmax:
      return "softmax";
    case RouterScores::kSigmoid:
      return "sigmoid";
  }
  return "?";
}

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::kSwiGlu:
      return "swiglu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
  }
  return "?";
}

}  // namespace molen::arch
