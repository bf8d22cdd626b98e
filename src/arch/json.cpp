#include "arch/json.h"

#include <array>

#include "base/error.h"
#include "base/json_fields.h"

namespace molen::arch {
namespace {

// These arrays are in the order of their enums, so that the number of a choice is its index.
constexpr std::array kFamilies{Family::kLlama, Family::kGpt};
constexpr std::array kNorms{Norm::kRms, Norm::kLayer, Norm::kLayerPlain};
constexpr std::array kQkNorms{QkNorm::kNone, QkNorm::kHead, QkNorm::kAll};
constexpr std::array kPositions{Position::kRope, Position::kLearned, Position::kAlibi};
constexpr std::array kRouterScores{RouterScores::kSoftmax, RouterScores::kSigmoid};
constexpr std::array kActivations{Activation::kSwiGlu, Activation::kGeluTanh};

template <class Enum, std::size_t N>
Enum choice(const JsonFields& fields, std::string_view key, const std::array<Enum, N>& values) {
  const Json* json = fields.find(key);
  if (json && json->is_number()) {
    const std::int64_t number = fields.integer(key);
    for (const Enum value : values)
      if (static_cast<std::int64_t>(value) == number) return value;
    throw UsageError("{}: '{}' is {}, which is not known", fields.origin(), key, number);
  }
  const std::string text = fields.text(key);
  for (const Enum value : values)
    if (name_of(value) == text) return value;
  throw UsageError("{}: '{}' is '{}', which is not known", fields.origin(), key, text);
}

RopeScaling rope_scaling_from_json(const Json& json, const std::string& origin) {
  static const std::vector<std::string> known{"factor", "low_freq_factor", "high_freq_factor", "original_max_sequence"};
  const JsonFields f(json, origin);
  f.require_known(known);
  return {f.number("factor"), f.number("low_freq_factor"), f.number("high_freq_factor"),
          f.integer("original_max_sequence")};
}

// The members that only models with experts have.
constexpr std::array kOfExperts{
    "experts_per_token", "expert_ffn",    "norm_topk",    "balance_loss",     "z_loss",         "dense_layers",
    "shared_experts",    "router_scores", "router_scale", "router_bias_rate", "expert_capacity"};

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> keys{"name",         "family",   "layers",     "hidden",       "ffn",        "heads",
                                  "kv_heads",     "head_dim", "vocabulary", "max_sequence", "rope_theta", "tied",
                                  "biases",       "norm_eps", "norm",       "position",     "activation", "init_std",
                                  "rope_scaling", "qk_norm",  "experts"};
    keys.insert(keys.end(), kOfExperts.begin(), kOfExperts.end());
    return keys;
  }();
  return all;
}

// The members have the names of the keys of [model]. Keys that were added later are left out if they have their
// default, so that older texts keep their bytes.
Json experts_to_json(const Experts& e) {
  Json json{{"experts", e.count},       {"experts_per_token", e.per_token}, {"expert_ffn", e.ffn},
            {"norm_topk", e.norm_topk}, {"balance_loss", e.balance_loss},   {"z_loss", e.z_loss}};
  if (e.dense_layers != 0) json["dense_layers"] = e.dense_layers;
  if (e.shared != 0) json["shared_experts"] = e.shared;
  if (e.scores != RouterScores::kSoftmax) json["router_scores"] = std::string(name_of(e.scores));
  if (e.scale != 1.0) json["router_scale"] = e.scale;
  if (e.bias_rate != 0.0) json["router_bias_rate"] = e.bias_rate;
  if (e.drops()) json["expert_capacity"] = e.capacity;
  return json;
}

Experts experts_from_json(const JsonFields& f) {
  Experts e{f.integer("experts"),   f.integer("experts_per_token"), f.integer("expert_ffn"),
            f.boolean("norm_topk"), f.number("balance_loss"),       f.number("z_loss")};
  e.dense_layers = f.integer("dense_layers", 0);
  e.shared = f.integer("shared_experts", 0);
  if (f.find("router_scores")) e.scores = choice(f, "router_scores", kRouterScores);
  e.scale = f.number("router_scale", 1.0);
  e.bias_rate = f.number("router_bias_rate", 0.0);
  e.capacity = f.number("expert_capacity", 0.0);
  return e;
}

}  // namespace

Json to_json(const Architecture& a) {
  Json json{{"name", a.name},
            {"family", std::string(name_of(a.family))},
            {"layers", a.layers},
            {"hidden", a.hidden},
            {"ffn", a.ffn},
            {"heads", a.heads},
            {"kv_heads", a.kv_heads},
            {"head_dim", a.head_dim},
            {"vocabulary", a.vocabulary},
            {"max_sequence", a.max_sequence},
            {"rope_theta", a.rope_theta},
            {"tied", a.tied},
            {"biases", a.biases},
            {"norm_eps", a.norm_eps},
            {"norm", std::string(name_of(a.norm))},
            {"position", std::string(name_of(a.position))},
            {"activation", std::string(name_of(a.activation))},
            {"init_std", a.init_std}};
  // Written only if there is such a norm, so that files of models without it are the same as in earlier versions.
  if (a.norms_qk()) json["qk_norm"] = std::string(name_of(a.qk_norm));
  if (a.experts) json.update(experts_to_json(*a.experts));
  if (a.rope_scaling)
    json["rope_scaling"] = {{"factor", a.rope_scaling->factor},
                            {"low_freq_factor", a.rope_scaling->low_freq_factor},
                            {"high_freq_factor", a.rope_scaling->high_freq_factor},
                            {"original_max_sequence", a.rope_scaling->original_max_sequence}};
  return json;
}

Architecture architecture_from_json(const Json& json, std::string_view origin) {
  const JsonFields f(json, std::string(origin));
  f.require_known(known_keys());
  Architecture a;
  a.name = f.text("name");
  a.family = choice(f, "family", kFamilies);
  a.layers = f.integer("layers");
  a.hidden = f.integer("hidden");
  a.ffn = f.integer("ffn");
  a.heads = f.integer("heads");
  a.kv_heads = f.integer("kv_heads");
  a.head_dim = f.integer("head_dim");
  a.vocabulary = f.integer("vocabulary");
  a.max_sequence = f.integer("max_sequence");
  a.rope_theta = f.number("rope_theta");
  a.tied = f.boolean("tied");
  a.biases = f.boolean("biases");
  a.norm_eps = f.number("norm_eps");
  a.norm = choice(f, "norm", kNorms);
  if (f.find("qk_norm")) a.qk_norm = choice(f, "qk_norm", kQkNorms);
  if (f.find("experts")) a.experts = experts_from_json(f);
  for (const char* key : kOfExperts)
    if (f.find(key) && !a.experts)
      throw UsageError("{}: {}: there are no experts without a number of them", origin, key);
  a.position = choice(f, "position", kPositions);
  a.activation = choice(f, "activation", kActivations);
  a.init_std = f.number("init_std");
  if (const Json* scaling = f.find("rope_scaling"))
    a.rope_scaling = rope_scaling_from_json(*scaling, f.origin() + ": rope_scaling");
  try {
    validate(a);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", origin, error.what());
  }
  return a;
}

}  // namespace molen::arch
