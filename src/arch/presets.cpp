// The named architectures. Sizes are the published ones; if a source gives none, the comment states our choice.
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/error.h"
#include "base/suggest.h"

namespace molen::arch {
namespace {

struct PublishedSizes {
  std::int64_t layers, hidden, ffn, heads, kv_heads, vocabulary, max_sequence;
};

Architecture sized(const char* name, const PublishedSizes& s) {
  Architecture a;
  a.name = name;
  a.layers = s.layers;
  a.hidden = s.hidden;
  a.ffn = s.ffn;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.hidden / s.heads;
  a.vocabulary = s.vocabulary;
  a.max_sequence = s.max_sequence;
  return a;
}

Architecture llama(const char* name, const PublishedSizes& sizes, double rope_theta) {
  Architecture a = sized(name, sizes);
  a.rope_theta = rope_theta;
  return a;
}

// Llama 3.1 and later: rescaled frequencies for positions beyond 8192.
Architecture scaled(Architecture a, double factor) {
  a.rope_scaling = RopeScaling{.factor = factor};
  return a;
}

Architecture tied(Architecture a) {
  a.tied = true;
  return a;
}

Architecture with_init(Architecture a, double init_std) {
  a.init_std = init_std;
  return a;
}

// GPT-2's layer: LayerNorm, biases, GELU of 4d, learned positions, tied head, as many KV heads as heads.
Architecture gpt(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                 std::int64_t vocabulary, std::int64_t max_sequence) {
  Architecture a = sized(name, {layers, hidden, 4 * hidden, heads, heads, vocabulary, max_sequence});
  a.family = Family::kGpt;
  a.tied = true;
  a.biases = true;
  a.norm = Norm::kLayer;
  a.position = Position::kLearned;
  a.activation = Activation::kGeluTanh;
  return a;
}

// BLOOM's form (Poro): ALiBi instead of positions. BLOOM's extra norm after the embedding is left out (2d parameters).
Architecture alibi(Architecture a) {
  a.position = Position::kAlibi;
  return a;
}

// OLMo 1 is a Llama whose LayerNorm has neither weight nor bias.
Architecture plain_norm(Architecture a) {
  a.norm = Norm::kLayerPlain;
  return a;
}

// Qwen3 (config.json of Qwen/Qwen3-0.6B and its family) has norms of queries and keys, and heads of 128 values at any
// hidden size.
Architecture qwen3(const char* name, const PublishedSizes& sizes) {
  Architecture a = llama(name, sizes, 1e6);
  a.head_dim = 128;
  a.norm_eps = 1e-6;
  a.qk_norm = QkNorm::kHead;
  return a;
}

// The losses of the router have the factors of the sources, converted to the definition in arch::Experts: the balance
// loss of transformers is larger by the factor `experts per token`.
Architecture sparse(Architecture a, const Experts& experts) {
  a.experts = experts;
  return a;
}

// config.json of mistralai/Mixtral-8x7B-v0.1 (arXiv 2401.04088).
Architecture mixtral_8x7b() {
  return sparse(llama("mixtral-8x7b", {32, 4096, 14336, 32, 8, 32000, 32768}, 1e6),
                {.count = 8, .per_token = 2, .ffn = 14336, .balance_loss = 0.04});
}

// config.json of allenai/OLMoE-1B-7B-0924; the losses are those of arXiv 2409.02060, section 4.1.
Architecture olmoe_1b_7b() {
  Architecture a =
      sparse(llama("olmoe-1b-7b", {16, 2048, 1024, 16, 16, 50304, 4096}, 10000.0),
             {.count = 64, .per_token = 8, .ffn = 1024, .norm_topk = false, .balance_loss = 0.01, .z_loss = 0.001});
  a.qk_norm = QkNorm::kAll;
  return a;
}

// config.json of Qwen/Qwen3-30B-A3B.
Architecture qwen3_30b_a3b() {
  return sparse(qwen3("qwen3-30b-a3b", {48, 2048, 6144, 32, 4, 151936, 40960}),
                {.count = 128, .per_token = 8, .ffn = 768, .balance_loss = 0.008});
}

std::vector<Architecture> make_presets() {
  return {
      // Ours, for the demo: 8.6 M parameters, trained by two CPU cores within minutes.
      tied(llama("llama-tiny", {6, 256, 704, 4, 2, 16384, 1024}, 10000.0)),
      // Ours, for the benchmarks: 56.4 M.
      llama("llama-60m", {8, 512, 1408, 8, 4, 32000, 2048}, 10000.0),
      // The shape of TinyLlama 1.1B (GPT-NL's scaling runs name a 1.1 B model without sizes).
      llama("llama-1.1b", {22, 2048, 5632, 32, 4, 32000, 2048}, 10000.0),
      llama("llama3-8b", {32, 4096, 14336, 32, 8, 128256, 8192}, 500000.0),
      // GPT-NL's 30B; vocabulary derived (Llama 3's).
      llama("llama3-30b", {60, 6656, 17920, 52, 13, 128256, 8192}, 500000.0),
      llama("llama3-70b", {80, 8192, 28672, 64, 8, 128256, 8192}, 500000.0),
      scaled(llama("llama3-405b", {126, 16384, 53248, 128, 8, 128256, 131072}, 500000.0), 8.0),
      tied(scaled(llama("llama3.2-1b", {16, 2048, 8192, 32, 8, 128256, 131072}, 500000.0), 32.0)),
      tied(qwen3("qwen3-0.6b", {28, 1024, 3072, 16, 8, 151936, 40960})),
      tied(qwen3("qwen3-1.7b", {28, 2048, 6144, 16, 8, 151936, 40960})),
      tied(qwen3("qwen3-4b", {36, 2560, 9728, 32, 8, 151936, 40960})),
      qwen3("qwen3-8b", {36, 4096, 12288, 32, 8, 151936, 40960}),
      qwen3("qwen3-14b", {40, 5120, 17408, 40, 8, 151936, 40960}),
      qwen3("qwen3-32b", {64, 5120, 25600, 64, 8, 151936, 40960}),
      mixtral_8x7b(),
      olmoe_1b_7b(),
      qwen3_30b_a3b(),
      gpt("gpt2", 12, 768, 12, 50257, 1024),
      // Frontier's family. The paper gives the 1.4B model a hidden size of 2114, which 24 heads do not divide.
      gpt("gpt-1.4b", 24, 2112, 24, 51200, 2048),
      gpt("gpt-22b", 48, 6144, 48, 51200, 2048),
      gpt("gpt-175b", 96, 12288, 96, 51200, 2048),
      gpt("gpt-1t", 128, 25600, 128, 51200, 2048),
      // GPT-3's 13B shape (OpenGPT-X gives no sizes).
      gpt("gpt-13b", 40, 5120, 40, 51200, 2048),
      alibi(gpt("poro-34b", 54, 7168, 56, 128000, 2048)),
      with_init(llama("viking-7b", {32, 4096, 11008, 32, 32, 131072, 4096}, 10000.0), 0.0048),
      with_init(llama("viking-33b", {56, 7168, 20480, 56, 8, 131072, 4096}, 10000.0), 0.0048),
      with_init(plain_norm(llama("olmo-7b", {32, 4096, 11008, 32, 32, 50304, 2048}, 10000.0)), 1.0 / 64.0),
      // LUMI's 140B model is named without sizes. Ours has 140.7 B parameters and 128-wide heads, divisible by TP 8 and
      // PP 4.
      gpt("gpt-140b", 92, 11264, 88, 51200, 2048),
  };
}

}  // namespace

const std::vector<Architecture>& presets() {
  static const std::vector<Architecture> all = make_presets();
  return all;
}

const Architecture& preset(const std::string& name) {
  std::vector<std::string> names;
  for (const Architecture& a : presets()) {
    if (a.name == name) return a;
    names.push_back(a.name);
  }
  throw UsageError("model.preset: no model is named \"{}\"{} (`molen model list` shows all)", name,
                   did_you_mean(name, names));
}

}  // namespace molen::arch
