// Tests config.json: the value of every key, in and out, and the text with which a key is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/test_golden.h"
#include "checkpoint/huggingface.h"

namespace molen::checkpoint {
namespace {

using arch::Architecture;

// Every key has its own value, which is never its default.
Json llama() {
  return Json::parse(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":24,
      "intermediate_size":40,"num_hidden_layers":3,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":8,
      "hidden_act":"silu","rms_norm_eps":0.125,"rope_theta":2500.0,
      "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.5,"high_freq_factor":4.5,
                      "original_max_position_embeddings":16},
      "max_position_embeddings":50,"vocab_size":97,"tie_word_embeddings":true,"attention_bias":false,
      "mlp_bias":false,"attention_dropout":0.0,"initializer_range":0.25,"pretraining_tp":1,"use_cache":true,
      "bos_token_id":1,"eos_token_id":[2,3],"pad_token_id":4,"torch_dtype":"float32",
      "transformers_version":"4.46.0"})");
}
Json qwen3() {
  Json json = llama();
  json.update({{"architectures", Json::array({"Qwen3ForCausalLM"})},
               {"model_type", "qwen3"},
               {"use_sliding_window", false},
               {"sliding_window", nullptr},
               {"max_window_layers", 3}});
  for (const char* only_of_llama : {"mlp_bias", "pretraining_tp"}) json.erase(only_of_llama);
  // Checks the keys that come last in every file.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "transformers_version"}) {
    const Json value = json[key];
    json.erase(key);
    json[key] = value;
  }
  return json;
}
Json gpt2() {
  return Json::parse(R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":97,"n_positions":50,
      "n_embd":24,"n_layer":3,"n_head":6,"n_inner":40,"activation_function":"gelu_new","layer_norm_epsilon":0.125,
      "initializer_range":0.25,"attn_pdrop":0.0,"embd_pdrop":0.0,"resid_pdrop":0.0,"scale_attn_weights":true,
      "scale_attn_by_inverse_layer_idx":false,"reorder_and_upcast_attn":false,"tie_word_embeddings":false,
      "use_cache":true,"bos_token_id":null,"eos_token_id":2,"pad_token_id":null,"torch_dtype":"bfloat16",
      "transformers_version":"4.46.0"})");
}

std::string config_refusal(const Json& json) {
  try {
    (void)parse_hf_config(json, "config.json");
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}
std::string with(Json json, const char* key, const Json& value) {
  json[key] = value;
  return config_refusal(json);
}
Architecture without(Json json, std::vector<const char*> keys) {
  for (const char* key : keys) json.erase(key);
  return parse_hf_config(json, "config.json").arch;
}

TEST(HfConfig, EveryKeyOfALlama) {
  const HfConfig config = parse_hf_config(llama(), "config.json");
  const Architecture& a = config.arch;
  EXPECT_EQ(a.family, arch::Family::kLlama);
  EXPECT_EQ(a.name, "custom");
  EXPECT_EQ(a.layers, 3);
  EXPECT_EQ(a.hidden, 24);
  EXPECT_EQ(a.ffn, 40);
  EXPECT_EQ(a.heads, 6);
  EXPECT_EQ(a.kv_heads, 2);
  EXPECT_EQ(a.head_dim, 8);
  EXPECT_EQ(a.vocabulary, 97);
  EXPECT_EQ(a.max_sequence, 50);
  EXPECT_TRUE(a.tied);
  EXPECT_EQ(a.norm_eps, 0.125);
  EXPECT_EQ(a.init_std, 0.25);
  EXPECT_EQ(a.rope_theta, 2500.0);
  EXPECT_EQ(a.rope_scaling, (arch::RopeScaling{8.0, 1.5, 4.5, 16}));
  EXPECT_EQ(config.tokens.bos, 1);
  EXPECT_EQ(config.tokens.eos, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config.tokens.pad, 4);
  EXPECT_TRUE(config.ignored.empty());
  EXPECT_EQ(hf_config(a, config.tokens, DType::kF32), llama());
}

// A Qwen3 is a Llama with norms of queries and keys.
TEST(HfConfig, EveryKeyOfAQwen3) {
  const HfConfig config = parse_hf_config(qwen3(), "config.json");
  Architecture like = parse_hf_config(llama(), "config.json").arch;
  EXPECT_EQ(like.qk_norm, arch::QkNorm::kNone);
  like.qk_norm = arch::QkNorm::kHead;
  EXPECT_EQ(config.arch, like);
  EXPECT_TRUE(config.ignored.empty());
  EXPECT_EQ(hf_config(config.arch, config.tokens, DType::kF32), qwen3());
}

TEST(HfConfig, RefusesAQwen3InTheseWords) {
  EXPECT_EQ(config_refusal(qwen3()), "accepted");
  EXPECT_EQ(with(qwen3(), "architectures", Json::array({"Qwen3MoeForCausalLM"})),
            "config.json: 'architectures': only [\"Qwen3ForCausalLM\"] is known for this model_type");
  EXPECT_EQ(with(qwen3(), "attention_bias", true),
            "config.json: 'attention_bias': biases in a Qwen3 are not implemented");
  EXPECT_EQ(with(qwen3(), "use_sliding_window", true),
            "config.json: 'use_sliding_window': attention over a window is not implemented");
  EXPECT_EQ(with(qwen3(), "sliding_window", 4), "accepted") << "use_sliding_window is false";
  const char* layers = "config.json: 'layer_types': only \"full_attention\" is implemented";
  EXPECT_EQ(with(qwen3(), "layer_types", {"full_attention", "full_attention", "full_attention"}), "accepted");
  EXPECT_EQ(with(qwen3(), "layer_types", {"full_attention", "sliding_attention", "full_attention"}), layers);
  EXPECT_EQ(with(qwen3(), "layer_types", "full_attention"), layers);
  // These keys are required: the defaults of transformers are the sizes of one model.
  for (const char* key : {"head_dim", "num_key_value_heads", "max_position_embeddings"}) {
    Json json = qwen3();
    json.erase(key);
    EXPECT_EQ(config_refusal(json), std::string("config.json: '") + key + "': is missing");
  }
}

Json mixtral() {
  Json json = llama();
  for (const char* key : {"attention_bias", "mlp_bias", "pretraining_tp"}) json.erase(key);
  json.update({{"architectures", Json::array({"MixtralForCausalLM"})},
               {"model_type", "mixtral"},
               {"sliding_window", nullptr},
               {"num_local_experts", 8},
               {"num_experts_per_tok", 2},
               {"router_aux_loss_coef", 0.25},
               {"router_jitter_noise", 0.0},
               {"output_router_logits", false}});
  return json;
}

Json olmoe() {
  Json json = mixtral();
  for (const char* key : {"sliding_window", "num_local_experts", "router_jitter_noise", "head_dim"}) json.erase(key);
  json.update({{"architectures", Json::array({"OlmoeForCausalLM"})},
               {"model_type", "olmoe"},
               {"num_experts", 8},
               {"norm_topk_prob", false},
               {"clip_qkv", nullptr},
               {"attention_bias", false}});
  return json;
}

Json qwen3_moe() {
  Json json = qwen3();
  json.update({{"architectures", Json::array({"Qwen3MoeForCausalLM"})},
               {"model_type", "qwen3_moe"},
               {"moe_intermediate_size", 12},
               {"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"norm_topk_prob", true},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", Json::array()},
               {"router_aux_loss_coef", 0.25},
               {"output_router_logits", false}});
  return json;
}

// The balance loss of transformers is larger than ours by the number of experts per token.
TEST(HfConfig, EveryKeyOfSparseModels) {
  Architecture like = parse_hf_config(llama(), "config.json").arch;
  like.experts = arch::Experts{.count = 8, .per_token = 2, .ffn = 40, .balance_loss = 0.5};
  const auto sorted = [](const Json& json) { return nlohmann::json(json); };
  const auto check = [&](const Json& json) {
    const HfConfig config = parse_hf_config(json, "config.json");
    EXPECT_EQ(config.arch, like);
    EXPECT_TRUE(config.ignored.empty());
    EXPECT_EQ(sorted(hf_config(config.arch, config.tokens, DType::kF32)), sorted(json));
  };
  check(mixtral());
  like.qk_norm = arch::QkNorm::kHead, like.experts->ffn = 12;
  check(qwen3_moe());
  like.qk_norm = arch::QkNorm::kAll, like.experts->ffn = 40, like.experts->norm_topk = false;
  like.head_dim = like.hidden / like.heads;
  check(olmoe());
}

// Releases of transformers differ in the key of the number of experts, and types of models in the default of the
// balance loss.
TEST(HfConfig, NamesAndDefaultsOfSparseModels) {
  for (Json json : {mixtral(), olmoe(), qwen3_moe()}) {
    const Architecture one = parse_hf_config(json, "config.json").arch;
    const bool local = json.contains("num_local_experts");
    const char *key = local ? "num_local_experts" : "num_experts", *other = local ? "num_experts" : "num_local_experts";
    Json renamed = json;
    renamed.erase(key);
    renamed[other] = 8;
    EXPECT_EQ(parse_hf_config(renamed, "config.json").arch, one);
    EXPECT_EQ(with(json, other, 8), "accepted");
    EXPECT_EQ(with(json, other, 9), "config.json: 'num_experts': differs from num_local_experts");
    const double factor = json.at("model_type") == "olmoe" ? 0.01 : 0.001;
    EXPECT_EQ(without(json, {"router_aux_loss_coef"}).experts->balance_loss, 2 * factor);
  }
  EXPECT_EQ(with(mixtral(), "router_jitter_noise", 0.1), "config.json: 'router_jitter_noise': only 0 is implemented");
  EXPECT_EQ(with(olmoe(), "clip_qkv", 8.0),
            "config.json: 'clip_qkv': clipped queries, keys and values are not implemented");
  EXPECT_EQ(with(qwen3_moe(), "decoder_sparse_step", 2),
            "config.json: 'decoder_sparse_step': only 1 is implemented: dense layers between sparse ones are not");
}

TEST(HfConfig, DenseLayersOfAQwen3MoeAreTheFirst) {
  Json json = qwen3();
  json.update({{"architectures", Json::array({"Qwen3MoeForCausalLM"})},
               {"model_type", "qwen3_moe"},
               {"moe_intermediate_size", 12},
               {"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"mlp_only_layers", {0, 1}}});
  const Architecture a = parse_hf_config(json, "config.json").arch;
  EXPECT_EQ(a.experts->dense_layers, 2);
  EXPECT_EQ(hf_config(a, {}, DType::kF32).at("mlp_only_layers"), Json({0, 1}));
  const std::string first = "only the first layers, in their order, are implemented as dense ones";
  for (const Json& other :
       {Json::array({1}), Json::array({1, 0}), Json::array({0, 0}), Json::array({0, 2}), Json::array({"0"})})
    EXPECT_EQ(with(json, "mlp_only_layers", other), "config.json: 'mlp_only_layers': " + first);
  EXPECT_EQ(with(json, "mlp_only_layers", 1), "config.json: 'mlp_only_layers': is no list of layers");
  EXPECT_EQ(with(json, "mlp_only_layers", {0, 1, 2}),
            "config.json: model.dense_layers: 3 of 3 layers; at least one layer has the experts");
  for (const auto norm : {arch::QkNorm::kNone, arch::QkNorm::kAll}) {
    Architecture other = a;
    other.qk_norm = norm;
    EXPECT_THROW(hf_config(other, {}, DType::kF32), UsageError) << "no other form has dense layers";
    other = parse_hf_config(json, "config.json").arch;
    other.experts->shared = 2, other.experts->dense_layers = 0, other.qk_norm = norm;
    EXPECT_THROW(hf_config(other, {}, DType::kF32), UsageError) << "these forms have no shared experts";
  }
}

TEST(HfConfig, EveryKeyOfADots1) {
  Json json = qwen3();
  json.erase("use_sliding_window");
  json.update({{"architectures", Json::array({"Dots1ForCausalLM"})},
               {"model_type", "dots1"},
               {"moe_intermediate_size", 12},
               {"n_routed_experts", 8},
               {"n_shared_experts", 2},
               {"num_experts_per_tok", 3},
               {"first_k_dense_replace", 1},
               {"norm_topk_prob", true},
               {"routed_scaling_factor", 2.5},
               {"n_group", 1},
               {"topk_group", 1}});
  const HfConfig config = parse_hf_config(json, "config.json");
  Architecture like = parse_hf_config(qwen3(), "config.json").arch;
  like.experts = arch::Experts{.count = 8, .per_token = 3, .ffn = 12, .balance_loss = 0.0};
  like.experts->dense_layers = 1, like.experts->shared = 2, like.experts->scale = 2.5;
  like.experts->scores = arch::RouterScores::kSigmoid, like.experts->bias_rate = 0.001;
  EXPECT_EQ(config.arch, like);
  EXPECT_TRUE(config.ignored.empty());
  EXPECT_EQ(nlohmann::json(hf_config(config.arch, config.tokens, DType::kF32)), nlohmann::json(json));
  EXPECT_EQ(without(json, {"first_k_dense_replace"}).experts->dense_layers, 0);
  EXPECT_EQ(without(json, {"routed_scaling_factor"}).experts->scale, 1.0);
  EXPECT_FALSE(without(json, {"norm_topk_prob"}).experts->norm_topk);
  for (const char* key : {"n_group", "topk_group"})
    EXPECT_EQ(with(json, key, 2), fmt::format("config.json: '{}': only 1 is implemented: the choice is among all "
                                              "experts",
                                              key));
  EXPECT_EQ(with(json, "n_shared_experts", 0), "config.json: 'n_shared_experts': must be positive");
  EXPECT_EQ(with(json, "attention_bias", true), "config.json: 'attention_bias': biases in a dots1 are not implemented");
  // Without layer_types, the layers from max_window_layers on have the window.
  Json window = json;
  window.erase("layer_types");
  window["sliding_window"] = 8;
  window["max_window_layers"] = like.layers;
  EXPECT_EQ(parse_hf_config(window, "config.json").arch, like);
  EXPECT_EQ(with(window, "max_window_layers", like.layers - 1),
            "config.json: 'sliding_window': attention over a window is not implemented");
  // transformers has no model with only some of these properties.
  for (const auto& change : std::initializer_list<void (*)(Architecture&)>{
           [](Architecture& a) { a.experts->scores = arch::RouterScores::kSoftmax; },
           [](Architecture& a) { a.experts->bias_rate = 0.0; }, [](Architecture& a) { a.experts->shared = 0; },
           [](Architecture& a) { a.qk_norm = arch::QkNorm::kNone; }}) {
    Architecture other = like;
    change(other);
    EXPECT_THROW(hf_config(other, {}, DType::kF32), UsageError);
  }
}

TEST(HfConfig, EveryKeyOfAGpt2) {
  const HfConfig config = parse_hf_config(gpt2(), "config.json");
  const Architecture& a = config.arch;
  EXPECT_EQ(a.family, arch::Family::kGpt);
  EXPECT_EQ(a.norm, arch::Norm::kLayer);
  EXPECT_EQ(a.position, arch::Position::kLearned);
  EXPECT_EQ(a.activation, arch::Activation::kGeluTanh);
  EXPECT_TRUE(a.biases);
  EXPECT_EQ(a.layers, 3);
  EXPECT_EQ(a.hidden, 24);
  EXPECT_EQ(a.ffn, 40);
  EXPECT_EQ(a.heads, 6);
  EXPECT_EQ(a.kv_heads, 6);
  EXPECT_EQ(a.head_dim, 4);
  EXPECT_EQ(a.vocabulary, 97);
  EXPECT_EQ(a.max_sequence, 50);
  EXPECT_FALSE(a.tied);
  EXPECT_EQ(a.norm_eps, 0.125);
  EXPECT_EQ(a.init_std, 0.25);
  EXPECT_EQ(config.tokens.bos, std::nullopt);
  EXPECT_EQ(hf_config(a, config.tokens, DType::kBF16), gpt2());
}

// The defaults of transformers, configuration_llama.py and configuration_gpt2.py.
TEST(HfConfig, WhatIsNotThereHasTheDefaultsOfTransformers) {
  const Architecture a =
      without(llama(), {"architectures", "num_key_value_heads", "head_dim", "max_position_embeddings",
                        "tie_word_embeddings", "rms_norm_eps", "initializer_range", "rope_theta", "rope_scaling",
                        "hidden_act", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "pad_token_id"});
  EXPECT_EQ(a.kv_heads, 6);
  EXPECT_EQ(a.head_dim, 4);
  EXPECT_EQ(a.max_sequence, 2048);
  EXPECT_FALSE(a.tied);
  EXPECT_EQ(a.norm_eps, 1e-6);
  EXPECT_EQ(a.init_std, 0.02);
  EXPECT_EQ(a.rope_theta, 10000.0);
  EXPECT_EQ(a.rope_scaling, std::nullopt);
  const Architecture g = without(gpt2(), {"architectures", "n_inner", "n_positions", "tie_word_embeddings",
                                          "layer_norm_epsilon", "initializer_range", "activation_function",
                                          "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "eos_token_id"});
  EXPECT_EQ(g.ffn, 96);
  EXPECT_EQ(g.max_sequence, 1024);
  EXPECT_TRUE(g.tied);
  EXPECT_EQ(g.norm_eps, 1e-5);
  EXPECT_EQ(g.init_std, 0.02);
}

TEST(HfConfig, RefusesALlamaInTheseWords) {
  EXPECT_EQ(config_refusal(llama()), "accepted");
  EXPECT_EQ(with(llama(), "architectures", Json::array({"GPT2LMHeadModel"})),
            "config.json: 'architectures': only [\"LlamaForCausalLM\"] is known for this model_type");
  for (const Json& bad : {Json::array(), Json("LlamaForCausalLM"), Json::array({"LlamaForCausalLM", "x"})})
    EXPECT_NE(with(llama(), "architectures", bad), "accepted") << bad;
  EXPECT_EQ(with(llama(), "model_type", "mistral"),
            "config.json: 'model_type': 'mistral' is not implemented; known: llama, qwen3, mixtral, olmoe, qwen3_moe, "
            "dots1, gpt2");
  EXPECT_EQ(with(llama(), "model_type", std::string(50, 'x')),
            "config.json: 'model_type': '" + std::string(40, 'x') +
                "' is not implemented; known: llama, qwen3, mixtral, olmoe, qwen3_moe, dots1, gpt2");
  EXPECT_EQ(with(llama(), "quantization_config", Json::object()),
            "config.json: 'quantization_config': quantised weights are not implemented");
  EXPECT_EQ(with(llama(), "num_attention_heads", 0), "config.json: 'num_attention_heads': must divide hidden_size");
  Json odd = llama();
  odd["num_attention_heads"] = odd["num_key_value_heads"] = 5;
  EXPECT_EQ(config_refusal(odd), "accepted") << "head_dim stands for itself";
  odd.erase("head_dim");
  EXPECT_EQ(config_refusal(odd), "config.json: 'num_attention_heads': must divide hidden_size");
  EXPECT_EQ(with(llama(), "sliding_window", 49),
            "config.json: 'sliding_window': attention over a window shorter than max_position_embeddings is not "
            "implemented");
  EXPECT_EQ(with(llama(), "sliding_window", 50), "accepted");
  EXPECT_EQ(with(llama(), "hidden_act", "gelu"), "config.json: 'hidden_act': only silu is implemented");
  EXPECT_EQ(with(llama(), "attention_bias", true),
            "config.json: 'attention_bias': biases in a Llama are not implemented");
  EXPECT_EQ(with(llama(), "mlp_bias", true), "config.json: 'mlp_bias': biases in a Llama are not implemented");
}

TEST(HfConfig, RefusesAGpt2InTheseWords) {
  EXPECT_EQ(config_refusal(gpt2()), "accepted");
  EXPECT_EQ(with(gpt2(), "architectures", Json::array({"LlamaForCausalLM"})),
            "config.json: 'architectures': only [\"GPT2LMHeadModel\"] is known for this model_type");
  for (const int heads : {0, -6, 5})
    EXPECT_EQ(with(gpt2(), "n_head", heads), "config.json: 'n_head': must divide n_embd");
  EXPECT_EQ(with(gpt2(), "n_embd", 6 * (std::int64_t{1} << 40)), "config.json: 'n_embd': too large");
  EXPECT_EQ(with(gpt2(), "activation_function", "relu"),
            "config.json: 'activation_function': only gelu_new is implemented");
  EXPECT_EQ(with(gpt2(), "activation_function", "gelu_pytorch_tanh"), "accepted");
  EXPECT_EQ(with(gpt2(), "scale_attn_weights", false), "config.json: 'scale_attn_weights': only true is implemented");
  EXPECT_EQ(with(gpt2(), "scale_attn_by_inverse_layer_idx", true),
            "config.json: 'scale_attn_by_inverse_layer_idx': only false is implemented");
  EXPECT_EQ(with(gpt2(), "add_cross_attention", true), "config.json: 'add_cross_attention': only false is implemented");
}

TEST(HfConfig, RopeInBothFormsAndTheKindsItKnows) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::string origin = std::string("config.json: ") + key + ": ";
    Json base = llama();
    base.erase("rope_scaling");
    EXPECT_EQ(with(base, key, {{"partial_rotary_factor", 0.5}}),
              origin + "'partial_rotary_factor': only 1 is implemented");
    EXPECT_EQ(with(base, key, {{"partial_rotary_factor", 1.0}}), "accepted");
    EXPECT_EQ(with(base, key, {{"type", "yarn"}}),
              origin + "'rope_type': 'yarn' is not implemented; known: default, llama3");
    EXPECT_EQ(with(base, key, {{"rope_type", "llama3"}, {"type", "yarn"}, {"factor", 8.0}, {"low_freq_factor", 1.0}}),
              origin + "'high_freq_factor' is missing");
    EXPECT_EQ(with(base, key, 3), origin.substr(0, origin.size() - 2) + ": must be a JSON object");
    base[key] = {{"rope_theta", 77.0}};
    EXPECT_EQ(parse_hf_config(base, "config.json").arch.rope_theta, 77.0);
    EXPECT_EQ(parse_hf_config(base, "config.json").arch.rope_scaling, std::nullopt);
  }
}

// Ids outside the token table are left out: some published files hold them.
TEST(HfConfig, SpecialTokensAreOfTheTable) {
  const auto tokens = [](const char* key, const Json& value) {
    Json json = llama();
    json[key] = value;
    return parse_hf_config(Json::parse(json.dump()), "config.json").tokens;  // as it is read from a file
  };
  EXPECT_EQ(tokens("bos_token_id", 96).bos, 96);
  EXPECT_EQ(tokens("pad_token_id", 0).pad, 0);
  for (const Json& none : {Json(97), Json(-1), Json(1.0), Json("1"), Json(nullptr)}) {
    EXPECT_EQ(tokens("bos_token_id", none).bos, std::nullopt) << none;
    EXPECT_EQ(tokens("pad_token_id", none).pad, std::nullopt) << none;
    EXPECT_TRUE(tokens("eos_token_id", none).eos.empty()) << none;
  }
  EXPECT_EQ(tokens("eos_token_id", 5).eos, std::vector<std::int64_t>{5});
  EXPECT_EQ(tokens("eos_token_id", {5, 97, 6}).eos, (std::vector<std::int64_t>{5, 6}));
}

TEST(HfConfig, CodeIsNamedAndNeverRun) {
  const std::string why = " names code to run, which molen never does; remove the key if the weights are a plain model";
  EXPECT_EQ(with(llama(), "auto_map", Json::object()), "config.json: 'auto_map'" + why);
  EXPECT_EQ(with(llama(), "x", Json::array({Json{{"custom_generate", "y"}}})), "config.json: 'custom_generate'" + why);
  EXPECT_EQ(with(llama(), "x", {{"custom_pipelines", true}}), "config.json: 'custom_pipelines'" + why);
  EXPECT_EQ(with(llama(), "attn_implementation", "kernels/x"), "config.json: 'attn_implementation'" + why);
  for (const Json& off : {Json(nullptr), Json(false)}) EXPECT_EQ(with(llama(), "trust_remote_code", off), "accepted");
  EXPECT_EQ(with(llama(), "_attn_implementation_autoset", true), "accepted");
}

TEST(HfConfig, WhatHasNoFormThere) {
  const GoldenMessages golden;
  const auto text = [](auto&& change, DType dtype = DType::kF32) -> std::string {
    Architecture a = parse_hf_config(gpt2(), "config.json").arch;
    change(a);
    try {
      (void)hf_config(a, {}, dtype);
      return "accepted";
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
  };
  EXPECT_EQ(text([](Architecture&) {}), "accepted");
  EXPECT_EQ(
      text([](Architecture& a) { a.position = arch::Position::kRope; }),
      "model 'custom' (layer norm, rope positions, gelu_tanh, biases) has no Hugging Face form that molen writes; "
      "known: Llama (rms, rope, swiglu, no biases), Qwen3 (a Llama with qk_norm = \"head\"), Mixtral (a Llama with "
      "experts and norm_topk), OLMoE (with qk_norm = \"all\" and experts), Qwen3-MoE (with qk_norm = \"head\" and "
      "experts), dots.llm1 (with qk_norm = \"head\", sigmoid scores, biases of the router and shared experts) and "
      "GPT-2 (layer, learned, "
      "gelu_tanh, biases, as many KV heads "
      "as heads)");
  EXPECT_NE(text([](Architecture& a) { a.norm = arch::Norm::kRms; }), "accepted");
  EXPECT_NE(text([](Architecture& a) { a.qk_norm = arch::QkNorm::kHead; }), "accepted");
  EXPECT_NE(text([](Architecture& a) {
              a = parse_hf_config(qwen3(), "config.json").arch;
              a.qk_norm = arch::QkNorm::kAll;
            }),
            "accepted");
  EXPECT_NE(text([](Architecture& a) { a.biases = false; }), "accepted");
  EXPECT_NE(text([](Architecture& a) { a.kv_heads = 2; }), "accepted");
  EXPECT_NE(text([](Architecture& a) { a.head_dim = 8; }), "accepted");
  EXPECT_EQ(text([](Architecture&) {}, DType::kI32), "weights of type i32 have no Hugging Face form");
}

}  // namespace
}  // namespace molen::checkpoint
