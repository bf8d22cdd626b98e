// Converts config.json to Architecture and back. Keys and defaults follow transformers, configuration_llama.py and
// those of qwen3, mixtral, olmoe, qwen3_moe, dots1 and gpt2.
#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json_fields.h"
#include "checkpoint/huggingface.h"

namespace molen::checkpoint {
namespace {

using arch::Architecture;

// We write the form of transformers 4, which transformers 5 reads too.
constexpr std::string_view kTransformersVersion = "4.46.0";

void require(bool condition, const JsonFields& f, std::string_view key, std::string_view why) {
  if (!condition) throw UsageError("{}: '{}': {}", f.origin(), key, why);
}

void check_class(const JsonFields& f, std::string_view expected) {
  const Json* classes = f.find("architectures");
  if (!classes) return;
  require(classes->is_array() && classes->size() == 1 && classes->front() == Json(expected), f, "architectures",
          fmt::format("only [\"{}\"] is known for this model_type", expected));
}

// rope_theta and rope_scaling (transformers 4), or rope_parameters (5), which holds both.
void parse_rope(const JsonFields& f, Architecture& a) {
  a.rope_theta = f.number("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* json = f.find(key);
    if (!json) continue;
    const JsonFields s(*json, fmt::format("{}: {}", f.origin(), key));
    a.rope_theta = s.number("rope_theta", a.rope_theta);
    const std::string type = s.text("rope_type", s.text("type", "default"));
    require(s.number("partial_rotary_factor", 1.0) == 1.0, s, "partial_rotary_factor", "only 1 is implemented");
    if (type == "default") continue;
    require(type == "llama3", s, "rope_type",
            fmt::format("'{}' is not implemented; known: default, llama3", type.substr(0, 40)));
    a.rope_scaling = arch::RopeScaling{s.number("factor"), s.number("low_freq_factor"), s.number("high_freq_factor"),
                                       s.integer("original_max_position_embeddings")};
  }
}

// Reads the keys that Llama and Qwen3 share.
Architecture parse_llama_sizes(const JsonFields& f) {
  Architecture a;
  a.family = arch::Family::kLlama;
  a.layers = f.integer("num_hidden_layers");
  a.hidden = f.integer("hidden_size");
  a.ffn = f.integer("intermediate_size");
  a.heads = f.integer("num_attention_heads");
  a.kv_heads = f.integer("num_key_value_heads", a.heads);
  require(a.heads > 0 && (f.find("head_dim") || a.hidden % a.heads == 0), f, "num_attention_heads",
          "must divide hidden_size");
  a.head_dim = f.integer("head_dim", a.hidden / a.heads);
  a.vocabulary = f.integer("vocab_size");
  a.max_sequence = f.integer("max_position_embeddings", 2048);
  a.tied = f.boolean("tie_word_embeddings", false);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.init_std = f.number("initializer_range", 0.02);
  parse_rope(f, a);
  require(f.text("hidden_act", "silu") == "silu", f, "hidden_act", "only silu is implemented");
  return a;
}

Architecture parse_llama(const JsonFields& f) {
  check_class(f, "LlamaForCausalLM");
  Architecture a = parse_llama_sizes(f);
  // A window that holds every position changes nothing; a smaller one would hide positions that our attention sees.
  require(!f.find("sliding_window") || f.integer("sliding_window") >= a.max_sequence, f, "sliding_window",
          "attention over a window shorter than max_position_embeddings is not implemented");
  require(!f.boolean("attention_bias", false), f, "attention_bias", "biases in a Llama are not implemented");
  require(!f.boolean("mlp_bias", false), f, "mlp_bias", "biases in a Llama are not implemented");
  return a;
}

void require_full_attention(const JsonFields& f) {
  const Json* kinds = f.find("layer_types");
  if (!kinds) return;
  const auto full = [](const Json& kind) { return kind == Json("full_attention"); };
  require(kinds->is_array() && std::all_of(kinds->begin(), kinds->end(), full), f, "layer_types",
          "only \"full_attention\" is implemented");
}

// Reads the keys of models that have norms of queries and keys over each head.
Architecture parse_qwen3_sizes(const JsonFields& f) {
  // These keys are required, because their defaults in transformers are the sizes of one model of the family.
  for (const char* key : {"head_dim", "num_key_value_heads", "max_position_embeddings"})
    require(f.find(key), f, key, "is missing");
  Architecture a = parse_llama_sizes(f);
  a.qk_norm = arch::QkNorm::kHead;
  require(!f.boolean("attention_bias", false), f, "attention_bias", "biases in a Qwen3 are not implemented");
  // Without use_sliding_window, the size of the window has no effect.
  require(!f.boolean("use_sliding_window", false), f, "use_sliding_window",
          "attention over a window is not implemented");
  require_full_attention(f);
  return a;
}

Architecture parse_qwen3(const JsonFields& f) {
  check_class(f, "Qwen3ForCausalLM");
  return parse_qwen3_sizes(f);
}

// Reads the number of experts, for which releases of transformers write one of two keys, whatever the type of the
// model.
std::int64_t parse_expert_count(const JsonFields& f) {
  const Json *one = f.find("num_experts"), *other = f.find("num_local_experts");
  require(!one || !other || *one == *other, f, "num_experts", "differs from num_local_experts");
  return f.integer(other ? "num_local_experts" : "num_experts");
}

// The keys of experts that differ between the types of sparse models. `count` is the key that an export writes.
// `norm_topk` is false for a type without that key: it always divides the weights of a token's experts by their sum.
// `balance` is the default of the factor of the balance loss.
struct ExpertKeys {
  const char *count, *width;
  bool norm_topk;
  double balance;
};
constexpr ExpertKeys kMixtralKeys{"num_local_experts", "intermediate_size", false, 0.001},
    kOlmoeKeys{"num_experts", "intermediate_size", true, 0.01},
    kQwen3MoeKeys{"num_experts", "moe_intermediate_size", true, 0.001};

// The balance loss of transformers is larger than ours by the number of experts per token, so its factor is smaller.
// transformers has no factor of a z-loss. Counts and widths are required, because their defaults there are those of one
// model.
arch::Experts parse_experts(const JsonFields& f, const ExpertKeys& keys) {
  arch::Experts e;
  e.count = parse_expert_count(f);
  e.per_token = f.integer("num_experts_per_tok");
  e.ffn = f.integer(keys.width);
  if (keys.norm_topk) e.norm_topk = f.boolean("norm_topk_prob", false);
  e.balance_loss = f.number("router_aux_loss_coef", keys.balance) * static_cast<double>(e.per_token);
  return e;
}

Architecture parse_mixtral(const JsonFields& f) {
  check_class(f, "MixtralForCausalLM");
  for (const char* key : {"num_key_value_heads", "max_position_embeddings"}) require(f.find(key), f, key, "is missing");
  require(f.find("rope_theta") || f.find("rope_parameters"), f, "rope_theta", "is missing");
  Architecture a = parse_llama_sizes(f);
  a.norm_eps = f.number("rms_norm_eps", 1e-5);
  a.experts = parse_experts(f, kMixtralKeys);
  require(!f.find("sliding_window") || f.integer("sliding_window") >= a.max_sequence, f, "sliding_window",
          "attention over a window shorter than max_position_embeddings is not implemented");
  require(f.number("router_jitter_noise", 0.0) == 0.0, f, "router_jitter_noise", "only 0 is implemented");
  return a;
}

Architecture parse_olmoe(const JsonFields& f) {
  check_class(f, "OlmoeForCausalLM");
  require(f.find("max_position_embeddings"), f, "max_position_embeddings", "is missing");
  Architecture a = parse_llama_sizes(f);
  a.norm_eps = f.number("rms_norm_eps", 1e-5);
  a.qk_norm = arch::QkNorm::kAll;
  a.experts = parse_experts(f, kOlmoeKeys);
  require(!f.boolean("attention_bias", false), f, "attention_bias", "biases in an OLMoE are not implemented");
  require(!f.find("clip_qkv"), f, "clip_qkv", "clipped queries, keys and values are not implemented");
  return a;
}

// [0, 1, ..., count - 1]
Json first_layers(std::int64_t count) {
  Json layers = Json::array();
  for (std::int64_t l = 0; l < count; ++l) layers.push_back(l);
  return layers;
}

Architecture parse_qwen3_moe(const JsonFields& f) {
  check_class(f, "Qwen3MoeForCausalLM");
  Architecture a = parse_qwen3_sizes(f);
  a.experts = parse_experts(f, kQwen3MoeKeys);
  require(f.integer("decoder_sparse_step", 1) == 1, f, "decoder_sparse_step",
          "only 1 is implemented: dense layers between sparse ones are not");
  if (const Json* dense = f.find("mlp_only_layers")) {
    require(dense->is_array(), f, "mlp_only_layers", "is no list of layers");
    a.experts->dense_layers = static_cast<std::int64_t>(dense->size());
    require(*dense == first_layers(a.experts->dense_layers), f, "mlp_only_layers",
            "only the first layers, in their order, are implemented as dense ones");
  }
  return a;
}

// dots.llm1 (arXiv 2506.05767) has attention as in Qwen3 and experts as in DeepSeek-V3. Its config.json has no rate at
// which the biases of routers move, so we take DeepSeek-V3's, and no balance loss.
Architecture parse_dots1(const JsonFields& f) {
  check_class(f, "Dots1ForCausalLM");
  for (const char* key : {"num_key_value_heads", "max_position_embeddings"}) require(f.find(key), f, key, "is missing");
  Architecture a = parse_llama_sizes(f);
  a.qk_norm = arch::QkNorm::kHead;
  require(!f.boolean("attention_bias", false), f, "attention_bias", "biases in a dots1 are not implemented");
  if (f.find("layer_types"))
    require_full_attention(f);
  else
    require(!f.find("sliding_window") || f.integer("max_window_layers", 62) >= a.layers, f, "sliding_window",
            "attention over a window is not implemented");
  for (const char* key : {"n_group", "topk_group"})
    require(f.integer(key, 1) == 1, f, key, "only 1 is implemented: the choice is among all experts");
  arch::Experts& e = a.experts.emplace();
  e.count = f.integer("n_routed_experts");
  e.per_token = f.integer("num_experts_per_tok");
  e.ffn = f.integer("moe_intermediate_size");
  e.shared = f.integer("n_shared_experts");
  require(e.shared >= 1, f, "n_shared_experts", "must be positive");
  e.dense_layers = f.integer("first_k_dense_replace", 0);
  e.norm_topk = f.boolean("norm_topk_prob", false);
  e.scale = f.number("routed_scaling_factor", 1.0);
  e.scores = arch::RouterScores::kSigmoid;
  e.balance_loss = 0.0, e.bias_rate = 0.001;
  return a;
}

Architecture parse_gpt2(const JsonFields& f) {
  check_class(f, "GPT2LMHeadModel");
  Architecture a;
  a.family = arch::Family::kGpt;
  a.norm = arch::Norm::kLayer;
  a.position = arch::Position::kLearned;
  a.activation = arch::Activation::kGeluTanh;
  a.biases = true;
  a.layers = f.integer("n_layer");
  a.hidden = f.integer("n_embd");
  a.heads = a.kv_heads = f.integer("n_head");
  require(a.heads > 0 && a.hidden % a.heads == 0, f, "n_head", "must divide n_embd");
  a.head_dim = a.hidden / a.heads;
  require(a.hidden < (std::int64_t{1} << 40), f, "n_embd", "too large");
  a.ffn = f.integer("n_inner", 4 * a.hidden);
  a.vocabulary = f.integer("vocab_size");
  a.max_sequence = f.integer("n_positions", 1024);
  a.tied = f.boolean("tie_word_embeddings", true);
  a.norm_eps = f.number("layer_norm_epsilon", 1e-5);
  a.init_std = f.number("initializer_range", 0.02);
  const std::string act = f.text("activation_function", "gelu_new");
  require(act == "gelu_new" || act == "gelu_pytorch_tanh", f, "activation_function", "only gelu_new is implemented");
  require(f.boolean("scale_attn_weights", true), f, "scale_attn_weights", "only true is implemented");
  require(!f.boolean("scale_attn_by_inverse_layer_idx", false), f, "scale_attn_by_inverse_layer_idx",
          "only false is implemented");
  require(!f.boolean("add_cross_attention", false), f, "add_cross_attention", "only false is implemented");
  return a;
}

TokenIds parse_tokens(const JsonFields& f, std::int64_t vocabulary) {
  TokenIds ids;
  // Some published files hold ids beyond the table (-1, or a default for another size). They name no token and are left
  // out.
  const auto valid = [&](const Json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() < static_cast<std::uint64_t>(vocabulary);
  };
  if (const Json* bos = f.find("bos_token_id"); bos && valid(*bos)) ids.bos = bos->get<std::int64_t>();
  if (const Json* pad = f.find("pad_token_id"); pad && valid(*pad)) ids.pad = pad->get<std::int64_t>();
  if (const Json* eos = f.find("eos_token_id")) {
    for (const Json& id : eos->is_array() ? *eos : Json::array({*eos}))
      if (valid(id)) ids.eos.push_back(id.get<std::int64_t>());
  }
  return ids;
}

const std::set<std::string_view>& known_keys() {
  static const std::set<std::string_view> keys{
      "architectures", "model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
      "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps",
      "initializer_range", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "hidden_act",
      "attention_bias", "mlp_bias", "use_sliding_window", "layer_types", "n_layer", "n_embd", "n_head", "n_inner",
      "n_positions", "layer_norm_epsilon", "activation_function", "scale_attn_weights",
      "scale_attn_by_inverse_layer_idx", "add_cross_attention", "num_local_experts", "num_experts",
      "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
      "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor", "n_group", "topk_group",
      "router_aux_loss_coef", "router_jitter_noise", "clip_qkv", "bos_token_id", "eos_token_id", "pad_token_id",
      // keys without effect on the result: rounding, dropout (pre-training uses none), caching, records of the file's
      // writer
      "max_window_layers", "output_router_logits", "torch_dtype", "dtype", "use_cache", "transformers_version",
      "pretraining_tp", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn",
      "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
      "n_ctx", "task_specific_params", "_name_or_path"};
  return keys;
}

Json ids_json(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

Json id_json(const std::optional<std::int64_t>& id) {
  return id ? Json(*id) : Json(nullptr);
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      break;
  }
  throw UsageError("weights of type {} have no Hugging Face form", name_of(dtype));
}

Json llama_config(const Architecture& a) {
  Json scaling = nullptr;
  if (a.rope_scaling) {
    scaling = {{"rope_type", "llama3"},
               {"factor", a.rope_scaling->factor},
               {"low_freq_factor", a.rope_scaling->low_freq_factor},
               {"high_freq_factor", a.rope_scaling->high_freq_factor},
               {"original_max_position_embeddings", a.rope_scaling->original_max_sequence}};
  }
  return {{"architectures", Json::array({"LlamaForCausalLM"})},
          {"model_type", "llama"},
          {"hidden_size", a.hidden},
          {"intermediate_size", a.ffn},
          {"num_hidden_layers", a.layers},
          {"num_attention_heads", a.heads},
          {"num_key_value_heads", a.kv_heads},
          {"head_dim", a.head_dim},
          {"hidden_act", "silu"},
          {"rms_norm_eps", a.norm_eps},
          {"rope_theta", a.rope_theta},
          {"rope_scaling", scaling},
          {"max_position_embeddings", a.max_sequence},
          {"vocab_size", a.vocabulary},
          {"tie_word_embeddings", a.tied},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", 0.0},
          {"initializer_range", a.init_std},
          {"pretraining_tp", 1},
          {"use_cache", true}};
}

Json qwen3_config(const Architecture& a) {
  Json json = llama_config(a);
  json["architectures"] = Json::array({"Qwen3ForCausalLM"});
  json["model_type"] = "qwen3";
  json["use_sliding_window"] = false;
  json["sliding_window"] = nullptr;
  json["max_window_layers"] = a.layers;
  for (const char* only_of_llama : {"mlp_bias", "pretraining_tp"}) json.erase(only_of_llama);
  return json;
}

void add_experts(const arch::Experts& e, const ExpertKeys& keys, Json& json) {
  json[keys.count] = e.count;
  json[keys.width] = e.ffn;
  json["num_experts_per_tok"] = e.per_token;
  if (keys.norm_topk) json["norm_topk_prob"] = e.norm_topk;
  json["router_aux_loss_coef"] = e.balance_loss / static_cast<double>(e.per_token);
  json["output_router_logits"] = false;
  for (const char* only_of_llama : {"mlp_bias", "pretraining_tp"}) json.erase(only_of_llama);
}

Json mixtral_config(const Architecture& a) {
  Json json = llama_config(a);
  json["architectures"] = Json::array({"MixtralForCausalLM"});
  json["model_type"] = "mixtral";
  json["sliding_window"] = nullptr;
  json["router_jitter_noise"] = 0.0;
  add_experts(a.sparse_experts(), kMixtralKeys, json);
  json.erase("attention_bias");
  return json;
}

Json olmoe_config(const Architecture& a) {
  Json json = llama_config(a);
  json["architectures"] = Json::array({"OlmoeForCausalLM"});
  json["model_type"] = "olmoe";
  json["clip_qkv"] = nullptr;
  add_experts(a.sparse_experts(), kOlmoeKeys, json);
  json.erase("head_dim");
  return json;
}

Json qwen3_moe_config(const Architecture& a) {
  Json json = qwen3_config(a);
  json["architectures"] = Json::array({"Qwen3MoeForCausalLM"});
  json["model_type"] = "qwen3_moe";
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = first_layers(a.sparse_experts().dense_layers);
  add_experts(a.sparse_experts(), kQwen3MoeKeys, json);
  return json;
}

Json dots1_config(const Architecture& a) {
  const arch::Experts& e = a.sparse_experts();
  Json json = qwen3_config(a);
  json["architectures"] = Json::array({"Dots1ForCausalLM"});
  json["model_type"] = "dots1";
  json["moe_intermediate_size"] = e.ffn;
  json["n_routed_experts"] = e.count;
  json["n_shared_experts"] = e.shared;
  json["num_experts_per_tok"] = e.per_token;
  json["first_k_dense_replace"] = e.dense_layers;
  json["norm_topk_prob"] = e.norm_topk;
  json["routed_scaling_factor"] = e.scale;
  json["n_group"] = json["topk_group"] = 1;
  json.erase("use_sliding_window");
  return json;
}

Json gpt2_config(const Architecture& a) {
  return {{"architectures", Json::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"vocab_size", a.vocabulary},
          {"n_positions", a.max_sequence},
          {"n_embd", a.hidden},
          {"n_layer", a.layers},
          {"n_head", a.heads},
          {"n_inner", a.ffn},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", a.norm_eps},
          {"initializer_range", a.init_std},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", a.tied},
          {"use_cache", true}};
}

// Returns whether the architecture is a Llama apart from norms of queries and keys, and from experts.
bool is_like_llama(const Architecture& a) {
  return a.norm == arch::Norm::kRms && a.position == arch::Position::kRope && a.gated() && !a.biases;
}
// Returns whether the experts are of the kind that Mixtral, OLMoE and Qwen3-MoE have.
bool only_routed(const Architecture& a) {
  return a.sparse() && !a.shares_experts() && a.sparse_experts().scores == arch::RouterScores::kSoftmax &&
         a.sparse_experts().scale == 1.0 && !a.biases_router();
}
bool is_llama(const Architecture& a) {
  return is_like_llama(a) && !a.norms_qk() && !a.sparse();
}
bool is_qwen3(const Architecture& a) {
  return is_like_llama(a) && a.qk_norm == arch::QkNorm::kHead && !a.sparse();
}
bool is_olmoe(const Architecture& a) {
  return is_like_llama(a) && a.qk_norm == arch::QkNorm::kAll && only_routed(a) && !a.dense() &&
         a.query_size() == a.hidden;
}
bool is_qwen3_moe(const Architecture& a) {
  return is_like_llama(a) && a.qk_norm == arch::QkNorm::kHead && only_routed(a);
}

bool is_dots1(const Architecture& a) {
  return is_like_llama(a) && a.qk_norm == arch::QkNorm::kHead && a.shares_experts() && a.biases_router() &&
         a.sparse_experts().scores == arch::RouterScores::kSigmoid;
}

bool is_gpt2(const Architecture& a) {
  return a.norm == arch::Norm::kLayer && !a.norms_qk() && !a.sparse() && a.position == arch::Position::kLearned &&
         !a.gated() && a.biases && a.heads == a.kv_heads && a.query_size() == a.hidden;
}

// The models that are read and written, by their "model_type".
struct Form {
  std::string_view type;
  Architecture (*parse)(const JsonFields&);
  bool (*is)(const Architecture&);
  Json (*config)(const Architecture&);
};
constexpr std::array kForms{Form{"llama", parse_llama, is_llama, llama_config},
                            Form{"qwen3", parse_qwen3, is_qwen3, qwen3_config},
                            Form{"mixtral", parse_mixtral, is_mixtral, mixtral_config},
                            Form{"olmoe", parse_olmoe, is_olmoe, olmoe_config},
                            Form{"qwen3_moe", parse_qwen3_moe, is_qwen3_moe, qwen3_moe_config},
                            Form{"dots1", parse_dots1, is_dots1, dots1_config},
                            Form{"gpt2", parse_gpt2, is_gpt2, gpt2_config}};

}  // namespace

bool is_mixtral(const Architecture& a) {
  return is_like_llama(a) && !a.norms_qk() && only_routed(a) && !a.dense() && a.sparse_experts().norm_topk;
}

void refuse_code(const Json& json, const std::string& origin) {
  static const std::set<std::string_view> code{"auto_map", "trust_remote_code", "custom_pipelines", "custom_generate"};
  if (json.is_array())
    for (const Json& item : json) refuse_code(item, origin);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const bool off = value.is_null() || value == Json(false);
    const bool names_code =
        code.contains(key) || (key.find("implementation") != std::string::npos && value.is_string());
    if (names_code && !off) {
      throw UsageError(
          "{}: '{}' names code to run, which molen never does; remove the key if the weights are a plain model", origin,
          key);
    }
    refuse_code(value, origin);
  }
}

HfConfig parse_hf_config(const Json& json, const std::string& origin) {
  const JsonFields f(json, origin);
  refuse_code(json, origin);
  require(!f.find("quantization_config"), f, "quantization_config", "quantised weights are not implemented");
  const std::string type = f.text("model_type");
  const auto form = std::find_if(kForms.begin(), kForms.end(), [&](const Form& known) { return known.type == type; });
  require(form != kForms.end(), f, "model_type",
          fmt::format("'{}' is not implemented; known: llama, qwen3, mixtral, olmoe, qwen3_moe, dots1, gpt2",
                      type.substr(0, 40)));
  HfConfig config;
  config.arch = form->parse(f);
  config.arch.name = "custom";
  try {
    arch::validate(config.arch);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", origin, error.what());
  }
  config.tokens = parse_tokens(f, config.arch.vocabulary);
  for (const auto& [key, value] : json.items())
    if (!known_keys().contains(key)) config.ignored.push_back(key);
  return config;
}

namespace {

std::string kind_of_experts(const Architecture& a) {
  if (!a.sparse()) return "";
  return fmt::format(", {}experts{}{}{}", a.shares_experts() ? "shared " : "", a.dense() ? " behind dense layers" : "",
                     a.sparse_experts().scores == arch::RouterScores::kSigmoid ? ", sigmoid scores" : "",
                     a.biases_router() ? ", biases of the router" : "");
}

}  // namespace

Json hf_config(const Architecture& a, const TokenIds& tokens, DType dtype) {
  const auto form = std::find_if(kForms.begin(), kForms.end(), [&](const Form& known) { return known.is(a); });
  if (form == kForms.end()) {
    throw UsageError(
        "model '{}' ({} norm, {} positions, {}{}{}{}) has no Hugging Face form that molen writes; known: Llama (rms, "
        "rope, swiglu, no biases), Qwen3 (a Llama with qk_norm = \"head\"), Mixtral (a Llama with experts and "
        "norm_topk), "
        "OLMoE (with qk_norm = \"all\" and experts), Qwen3-MoE (with qk_norm = \"head\" and experts), "
        "dots.llm1 (with qk_norm = \"head\", sigmoid scores, biases of the router and shared experts) and GPT-2 "
        "(layer, "
        "learned, gelu_tanh, biases, as many KV heads as heads)",
        a.name, arch::name_of(a.norm), arch::name_of(a.position), arch::name_of(a.activation),
        a.biases ? ", biases" : "", a.norms_qk() ? fmt::format(", qk_norm {}", arch::name_of(a.qk_norm)) : "",
        kind_of_experts(a));
  }
  Json json = form->config(a);
  // These are always written, because transformers replaces missing ones by ids of other models.
  json["bos_token_id"] = id_json(tokens.bos);
  json["eos_token_id"] = ids_json(tokens.eos);
  json["pad_token_id"] = id_json(tokens.pad);
  json["torch_dtype"] = torch_name(dtype);
  json["transformers_version"] = kTransformersVersion;
  return json;
}

}  // namespace molen::checkpoint
