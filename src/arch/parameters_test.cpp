#include "arch/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace molen::arch {
namespace {

std::int64_t count(const char* name) {
  return num_parameters(preset(name));
}

TEST(Parameters, ExactCounts) {
  EXPECT_EQ(count("llama3-8b"), 8'030'261'248);
  EXPECT_EQ(count("llama3-70b"), 70'553'706'496);
  EXPECT_EQ(count("llama3-405b"), 405'853'388'800);
  EXPECT_EQ(count("llama3.2-1b"), 1'235'814'400);
  EXPECT_EQ(count("qwen3-0.6b"), 596'049'920);    // Qwen3-0.6B's; 751,632,384 if the tied table counts twice
  EXPECT_EQ(count("qwen3-1.7b"), 1'720'574'976);  // Qwen3-1.7B's
  EXPECT_EQ(count("qwen3-4b"), 4'022'468'096);
  EXPECT_EQ(count("qwen3-8b"), 8'190'735'360);
  EXPECT_EQ(count("qwen3-14b"), 14'768'307'200);
  EXPECT_EQ(count("qwen3-32b"), 32'762'123'264);
  EXPECT_EQ(count("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(count("olmoe-1b-7b"), 6'919'161'856);
  EXPECT_EQ(count("qwen3-30b-a3b"), 30'532'122'624);
  EXPECT_EQ(count("gpt2"), 124'439'808);
  EXPECT_EQ(count("llama-60m"), 56'369'664);
  EXPECT_EQ(count("llama-1.1b"), 1'100'048'384);  // TinyLlama's
  EXPECT_EQ(count("olmo-7b"), 6'888'095'744);     // OLMo-7B-hf's
  EXPECT_EQ(count("llama-tiny"), 8'621'312);
}

// The MLPs of DeepSeek-V2-Lite, whose attention molen does not have: 27 layers, of which the first is dense, and 64
// experts beside two shared ones (arXiv 2405.04434, appendix B). Attention, norms, embedding and head make up the rest
// of the model's 15.7 B.
TEST(Parameters, ExactCountOfTheMlpsOfDeepSeekV2Lite) {
  Architecture a = preset("llama3.2-1b");
  a.layers = 27, a.hidden = 2048, a.ffn = 10944;
  a.experts = Experts{.count = 64, .per_token = 6, .ffn = 1408, .norm_topk = false, .dense_layers = 1, .shared = 2};
  std::int64_t mlps = 0;
  for (const Parameter& p : parameters(a))
    if (p.role == Role::kGate || p.role == Role::kUp || p.role == Role::kDown || p.role == Role::kRouter ||
        p.role == Role::kSharedGate || p.role == Role::kSharedUp || p.role == Role::kSharedDown || of_expert(p.role))
      mlps += p.elements();
  EXPECT_EQ(mlps, 14'915'338'240);
}

// The counts contain the embedding and the head: 12.9 B, 1.3 B and 3.3 B in the models' papers.
TEST(Parameters, ExactCountsOfWhatATokenMeets) {
  const auto active = [](const char* name) { return num_active_parameters(preset(name)); };
  EXPECT_EQ(active("mixtral-8x7b"), 12'879'925'248);
  EXPECT_EQ(active("olmoe-1b-7b"), 1'282'017'280);
  EXPECT_EQ(active("qwen3-30b-a3b"), 3'353'032'704);
  EXPECT_EQ(active("llama3-8b"), count("llama3-8b"));
}

TEST(Parameters, Gpt3ShapeWithGpt2Vocabulary) {
  Architecture a = preset("gpt-175b");
  a.vocabulary = 50257;
  EXPECT_EQ(num_parameters(a), 174'604'259'328);
}

// A norm of queries or keys has one weight that all heads share, or one value for each value of all heads. The weights
// are initialised to one and have no weight decay.
TEST(Parameters, NormsOfQueriesAndKeys) {
  Architecture a = preset("llama-60m");
  const std::int64_t without = num_parameters(a);
  for (const auto& [kind, query, key, shard] :
       {std::tuple{QkNorm::kHead, a.head_dim, a.head_dim, ShardDim::kNone},
        std::tuple{QkNorm::kAll, a.query_size(), a.kv_size(), ShardDim::kRows}}) {
    a.qk_norm = kind;
    EXPECT_EQ(num_parameters(a), without + a.layers * (query + key));
    int found = 0;
    for (const Parameter& p : parameters(a)) {
      if (p.role != Role::kQueryNorm && p.role != Role::kKeyNorm) continue;
      const bool of_query = p.role == Role::kQueryNorm;
      EXPECT_EQ(p.name,
                "model.layers." + std::to_string(p.layer) + ".self_attn." + (of_query ? "q" : "k") + "_norm.weight");
      EXPECT_EQ(p.shape, std::vector<std::int64_t>{of_query ? query : key});
      EXPECT_EQ(p.init, Init::kOnes);
      EXPECT_FALSE(p.decay);
      EXPECT_EQ(p.shard, shard);
      ++found;
    }
    EXPECT_EQ(found, 2 * a.layers);
  }
}

TEST(Parameters, Llama32With3B) {
  Architecture a = preset("llama3.2-1b");
  a.layers = 28, a.hidden = 3072, a.heads = 24, a.head_dim = 128;
  EXPECT_EQ(num_parameters(a), 3'212'749'824);
}

// Sizes as their sources give them, or as computed from the shape (Viking 7B has 7.55 B).
TEST(Parameters, CountsAgreeWithTheNames) {
  const std::map<std::string, double> billions{
      {"llama3-30b", 29.8}, {"gpt-1.4b", 1.4},  {"gpt-22b", 22},     {"gpt-175b", 175},    {"gpt-1t", 1008},
      {"gpt-13b", 13},      {"poro-34b", 34.2}, {"viking-7b", 7.55}, {"viking-33b", 33.1}, {"gpt-140b", 140}};
  for (const auto& [name, expected] : billions) {
    EXPECT_NEAR(static_cast<double>(count(name.c_str())) * 1e-9, expected, 0.02 * expected) << name;
  }
}

std::vector<std::string> layer_names(const Architecture& a, std::int64_t layer) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters(a)) {
    if (p.layer == layer) names.push_back(p.name);
  }
  return names;
}

TEST(Parameters, LlamaStorageOrder) {
  Architecture a = preset("llama-60m");
  const std::string l = "model.layers.7.";
  EXPECT_EQ(layer_names(a, 7),
            (std::vector<std::string>{
                l + "input_layernorm.weight", l + "self_attn.q_proj.weight", l + "self_attn.k_proj.weight",
                l + "self_attn.v_proj.weight", l + "self_attn.o_proj.weight", l + "post_attention_layernorm.weight",
                l + "mlp.gate_proj.weight", l + "mlp.up_proj.weight", l + "mlp.down_proj.weight"}));
  EXPECT_EQ(layer_names(a, -1),
            (std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}));
}

// The gate|up matrices of all experts are adjacent, and so are their down projections.
TEST(Parameters, SparseStorageOrder) {
  Architecture a = preset("llama-60m");
  a.experts = Experts{.count = 2, .per_token = 1, .ffn = 77};
  const std::string l = "model.layers.7.", e = l + "mlp.experts.";
  const auto names = layer_names(a, 7);
  EXPECT_EQ(std::vector<std::string>(names.begin() + 6, names.end()),
            (std::vector<std::string>{l + "mlp.gate.weight", e + "0.gate_proj.weight", e + "0.up_proj.weight",
                                      e + "1.gate_proj.weight", e + "1.up_proj.weight", e + "0.down_proj.weight",
                                      e + "1.down_proj.weight"}));
  for (const Parameter& p : parameters(a)) {
    const bool of_expert = p.role == Role::kExpertGate || p.role == Role::kExpertUp || p.role == Role::kExpertDown;
    EXPECT_EQ(p.expert >= 0, of_expert) << p.name;
    if (of_expert) {
      EXPECT_NE(p.name.find(".experts." + std::to_string(p.expert) + "."), std::string::npos) << p.name;
    }
    if (p.role == Role::kRouter) {
      EXPECT_EQ(p.shape, (std::vector<std::int64_t>{2, 512}));
    }
    if (p.role == Role::kExpertUp) {
      EXPECT_EQ(p.shape, (std::vector<std::int64_t>{77, 512}));
    }
    if (p.role == Role::kExpertDown) {
      EXPECT_EQ(p.shape, (std::vector<std::int64_t>{512, 77}));
    }
  }
  a.activation = Activation::kGeluTanh;
  for (const Parameter& p : parameters(a)) EXPECT_NE(p.role, Role::kExpertGate);
}

// Shared experts are one MLP, which is stored after the other experts. They compute every token.
TEST(Parameters, SharedExpertsAreOneMlp) {
  Architecture a = preset("llama-60m");
  a.experts = Experts{.count = 2, .per_token = 1, .ffn = 77};
  const std::int64_t routed = num_parameters(a), active = num_active_parameters(a);
  a.experts->shared = 3;
  const std::string l = "model.layers.7.mlp.", s = l + "shared_experts.";
  const auto names = layer_names(a, 7);
  EXPECT_EQ(std::vector<std::string>(names.end() - 4, names.end()),
            (std::vector<std::string>{l + "experts.1.down_proj.weight", s + "gate_proj.weight", s + "up_proj.weight",
                                      s + "down_proj.weight"}));
  EXPECT_EQ(num_parameters(a) - routed, 8 * 3 * 512 * 3 * 77);
  EXPECT_EQ(num_active_parameters(a) - active, 8 * 3 * 512 * 3 * 77);
  for (const Parameter& p : parameters(a)) {
    if (p.role == Role::kSharedGate || p.role == Role::kSharedUp) {
      EXPECT_EQ(p.shape, (std::vector<std::int64_t>{3 * 77, 512}));
    }
    if (p.role == Role::kSharedDown) {
      EXPECT_EQ(p.shape, (std::vector<std::int64_t>{512, 3 * 77}));
      EXPECT_LT(p.init_std, a.init_std);
    }
  }
  a.activation = Activation::kGeluTanh;
  for (const Parameter& p : parameters(a)) EXPECT_NE(p.role, Role::kSharedGate);
}

// The bias of a router is stored beside the parameters, but does not count as one.
TEST(Parameters, ABiasOfARouterIsNotCounted) {
  Architecture a = preset("llama-60m");
  a.experts = Experts{.count = 6, .per_token = 1, .ffn = 77, .dense_layers = 2};
  const std::vector<Parameter> without = parameters(a);
  const std::int64_t all = num_parameters(a), active = num_active_parameters(a);
  a.experts->bias_rate = 0.001;
  EXPECT_EQ(num_parameters(a), all);
  EXPECT_EQ(num_active_parameters(a), active);
  std::vector<Parameter> rest = parameters(a), biases;
  std::erase_if(rest, [&](const Parameter& p) {
    if (moved_by_load(p.role)) biases.push_back(p);
    return moved_by_load(p.role);
  });
  EXPECT_EQ(rest, without);
  ASSERT_EQ(biases.size(), 6u);
  EXPECT_EQ(biases.back().name, "model.layers.7.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(biases.back().shape, (std::vector<std::int64_t>{6}));
  EXPECT_EQ(biases.back().init, Init::kZeros);
  EXPECT_FALSE(biases.back().decay);
}

// Layers before the first sparse layer are like those of a model without experts.
TEST(Parameters, DenseLayersStandBeforeSparseOnes) {
  const Architecture dense = preset("llama-60m");
  Architecture mixed = dense, sparse = dense;
  sparse.experts = Experts{.count = 5, .per_token = 2, .ffn = 77};
  mixed.experts = sparse.experts, mixed.experts->dense_layers = 3;
  for (const std::int64_t l : {0, 2, 3, 7}) {
    EXPECT_EQ(layer_names(mixed, l), layer_names(l < 3 ? dense : sparse, l)) << l;
    EXPECT_EQ(mixed.sparse(l), l >= 3);
  }
  // 3 of 8 layers have gate, up and down of width 1408. The others have a router and five times three matrices of width
  // 77.
  EXPECT_EQ(num_parameters(mixed) - num_parameters(dense), 5 * 512 * (5 + 5 * 3 * 77 - 3 * 1408));
  EXPECT_EQ(num_parameters(mixed) - num_active_parameters(mixed), 5 * 512 * 3 * 3 * 77);
  EXPECT_TRUE(mixed.dense());
  EXPECT_FALSE(sparse.dense());
  EXPECT_TRUE(dense.dense());
}

TEST(Parameters, GptStorageOrder) {
  const Architecture& a = preset("gpt2");
  const std::string l = "model.layers.0.";
  EXPECT_EQ(
      layer_names(a, 0),
      (std::vector<std::string>{
          l + "input_layernorm.weight", l + "input_layernorm.bias", l + "self_attn.q_proj.weight",
          l + "self_attn.k_proj.weight", l + "self_attn.v_proj.weight", l + "self_attn.q_proj.bias",
          l + "self_attn.k_proj.bias", l + "self_attn.v_proj.bias", l + "self_attn.o_proj.weight",
          l + "self_attn.o_proj.bias", l + "post_attention_layernorm.weight", l + "post_attention_layernorm.bias",
          l + "mlp.up_proj.weight", l + "mlp.up_proj.bias", l + "mlp.down_proj.weight", l + "mlp.down_proj.bias"}));
  EXPECT_EQ(layer_names(a, -1), (std::vector<std::string>{"model.embed_tokens.weight", "model.embed_positions.weight",
                                                          "model.norm.weight", "model.norm.bias"}));
}

TEST(Parameters, AlibiHasNoPositionsAndPlainNormNoParameters) {
  for (const Parameter& p : parameters(preset("poro-34b"))) EXPECT_NE(p.role, Role::kPositions);
  for (const Parameter& p : parameters(preset("olmo-7b"))) EXPECT_EQ(p.shape.size(), 2u) << p.name;
}

// Properties that the optimizer, the initialiser and tensor parallelism rely on, for every preset.
TEST(Parameters, EachIsNamedOnceAndFollowsTheRules) {
  for (const Architecture& a : presets()) {
    std::set<std::string> names;
    std::int64_t previous = -1;
    for (const Parameter& p : parameters(a)) {
      EXPECT_TRUE(names.insert(p.name).second) << p.name;
      EXPECT_EQ(p.decay, p.shape.size() == 2 && p.role != Role::kPositions) << p.name;
      EXPECT_EQ(p.init == Init::kNormal, p.shape.size() == 2) << p.name;
      const bool residual = p.role == Role::kOutput || p.role == Role::kDown || p.role == Role::kExpertDown;
      if (p.init == Init::kNormal) {
        const double depth = residual ? std::sqrt(2.0 * static_cast<double>(a.layers)) : 1.0;
        EXPECT_DOUBLE_EQ(p.init_std * depth, a.init_std) << p.name;
      }
      EXPECT_EQ(p.shard == ShardDim::kColumns, residual) << p.name;
      if (p.layer >= 0) {
        EXPECT_GE(p.layer, previous) << p.name;
        previous = p.layer;
      }
    }
    EXPECT_EQ(previous, a.layers - 1);
  }
}

TEST(Parameters, ShapesAreOutByIn) {
  Architecture a = preset("llama-60m");
  a.layers = 1, a.hidden = 30, a.ffn = 77, a.heads = 6, a.kv_heads = 2, a.head_dim = 10, a.vocabulary = 101;
  std::map<Role, std::vector<std::int64_t>> shapes;
  for (const Parameter& p : parameters(a)) shapes[p.role] = p.shape;
  EXPECT_EQ(shapes[Role::kQuery], (std::vector<std::int64_t>{60, 30}));
  EXPECT_EQ(shapes[Role::kValue], (std::vector<std::int64_t>{20, 30}));
  EXPECT_EQ(shapes[Role::kOutput], (std::vector<std::int64_t>{30, 60}));
  EXPECT_EQ(shapes[Role::kGate], (std::vector<std::int64_t>{77, 30}));
  EXPECT_EQ(shapes[Role::kDown], (std::vector<std::int64_t>{30, 77}));
  EXPECT_EQ(shapes[Role::kHead], (std::vector<std::int64_t>{101, 30}));
}

}  // namespace
}  // namespace molen::arch
