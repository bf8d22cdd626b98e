// For the tests of the parts: small architectures of both families in awkward sizes, random tensors keyed by name, and
// workspace.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "math/scratch.h"
#include "model/parts.h"

namespace molen::model {

inline arch::Architecture small(const char* name, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                                std::int64_t kv_heads, std::int64_t head_dim) {
  arch::Architecture a;
  a.name = name;
  a.layers = 2, a.hidden = hidden, a.ffn = ffn, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim,
  a.vocabulary = 101;
  a.max_sequence = 137;
  return a;
}

// ALiBi's slopes by number of heads. They are made before any test, because an op must not allocate.
inline const std::vector<at::Tensor> kSlopes = [] {
  std::vector<at::Tensor> slopes(1);
  for (arch::Architecture a; a.heads++ < 16;) slopes.push_back(make_slopes(a));
  return slopes;
}();
// Returns a context of all heads with its ALiBi slopes set.
inline Context with_slopes(Context c) {
  if (c.arch.position == arch::Position::kAlibi) c.slopes = &kSlopes.at(static_cast<std::size_t>(c.arch.heads));
  return c;
}

// Returns Llama with grouped queries; GPT with learned positions and biases; ALiBi with multi-query groups; LayerNorm
// without parameters; and models with norms of queries and keys, over each head before RoPE, and over all heads without
// RoPE.
inline std::vector<arch::Architecture> test_architectures() {
  auto llama = small("llama", 37, 53, 6, 2, 10);
  auto gpt = small("gpt", 43, 59, 3, 3, 14);
  gpt.family = arch::Family::kGpt, gpt.norm = arch::Norm::kLayer, gpt.position = arch::Position::kLearned;
  gpt.activation = arch::Activation::kGeluTanh, gpt.biases = true;
  auto alibi = small("alibi", 47, 61, 5, 1, 34);
  alibi.family = arch::Family::kGpt, alibi.norm = arch::Norm::kLayer, alibi.position = arch::Position::kAlibi;
  alibi.activation = arch::Activation::kGeluTanh, alibi.biases = true, alibi.tied = true;
  auto olmo = small("olmo", 41, 67, 4, 4, 38);
  olmo.norm = arch::Norm::kLayerPlain;
  auto qwen = small("qwen", 37, 53, 6, 2, 12), all = small("norms over all heads", 35, 53, 4, 2, 9);
  qwen.qk_norm = arch::QkNorm::kHead;
  all.qk_norm = arch::QkNorm::kAll, all.position = arch::Position::kLearned;
  return {llama, gpt, alibi, olmo, qwen, all};
}

inline at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return at::kDouble;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

inline at::Tensor random_normal(at::IntArrayRef shape, const std::string& key, double scale) {
  std::mt19937_64 engine(std::hash<std::string>{}(key));
  std::normal_distribution<double> normal(0.0, scale);
  const at::Tensor t = at::empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data_ptr<double>()[i] = normal(engine);
  return t;
}

// Returns int32 ids, of which every `ignored`-th is -1 (0: none).
inline at::Tensor random_ids(std::int64_t count, std::int64_t vocabulary, int ignored, const std::string& key) {
  std::mt19937_64 engine(std::hash<std::string>{}(key));
  const at::Tensor t = at::empty({count}, at::kInt);
  for (std::int64_t i = 0; i < count; ++i)
    t.data_ptr<std::int32_t>()[i] = ignored > 0 && i % ignored == 1
                                        ? -1
                                        : static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary));
  return t;
}

// Scratch of exactly the given number of bytes.
struct Workspace {
  explicit Workspace(std::int64_t bytes)
      : memory(static_cast<std::size_t>(bytes) + 64),
        scratch(reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64), bytes) {}
  std::vector<char> memory;
  math::Scratch scratch;
};

}  // namespace molen::model
