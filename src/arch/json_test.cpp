#include "arch/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace molen::arch {
namespace {

std::string refusal(const Json& json) {
  try {
    architecture_from_json(json, "state.json: arch");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// Applies `change` to each member in turn; the error must name the origin, the member's object and its key.
template <class Change>
void refuses_each(const Json& whole, Change change) {
  std::vector<std::pair<std::string, std::string>> keys;  // object ("" or "rope_scaling"), key
  for (const auto& [key, value] : whole.items()) keys.emplace_back("", key);
  for (const auto& [key, value] : whole.at("rope_scaling").items()) keys.emplace_back("rope_scaling", key);
  for (const auto& [object, key] : keys) {
    Json spoilt = whole;
    if (!change(object.empty() ? spoilt : spoilt[object], key)) continue;
    const std::string text = refusal(spoilt);
    EXPECT_EQ(text.rfind("state.json: arch", 0), 0u) << object << "." << key << ": " << text;
    EXPECT_NE(text.find(object), std::string::npos) << object << "." << key << ": " << text;
    EXPECT_NE(text.find(key), std::string::npos) << object << "." << key << ": " << text;
  }
}

Json scaled() {
  Architecture a = preset("llama-tiny");
  a.rope_scaling = RopeScaling{};
  a.experts = Experts{.count = 4,
                      .per_token = 2,
                      .ffn = 88,
                      .dense_layers = 1,
                      .shared = 1,
                      .scores = RouterScores::kSigmoid,
                      .scale = 2.5,
                      .bias_rate = 0.5,
                      .capacity = 1.25};
  return to_json(a);
}

TEST(ArchitectureJson, AllPresetsReadBack) {
  for (const Architecture& a : presets())
    EXPECT_EQ(architecture_from_json(parse_json(to_json(a).dump(), "x"), "x"), a) << a.name;
}

// Architectures in existing checkpoints, whose choices may be numbers, must still be read.
TEST(ArchitectureJson, KeepsItsBytesAndReadsNumbers) {
  const std::string names =
      R"({"name":"llama-tiny*","family":"gpt","layers":1,"hidden":256,"ffn":704,"heads":4,"kv_heads":2,"head_dim":64,)"
      R"("vocabulary":16384,"max_sequence":1024,"rope_theta":10000.0,"tied":true,"biases":false,"norm_eps":1e-05,)"
      R"("norm":"layer_plain","position":"alibi","activation":"gelu_tanh","init_std":0.02})";
  const Architecture a = architecture_from_json(parse_json(names, "x"), "x");
  EXPECT_EQ(to_json(a).dump(), names);
  Json numbers = parse_json(names, "x");
  numbers.update({{"family", 1}, {"norm", 2}, {"position", 2}, {"activation", 1}});
  EXPECT_EQ(architecture_from_json(numbers, "x"), a);
}

TEST(ArchitectureJson, RefusesAMissingKey) {
  refuses_each(scaled(), [](Json& object, const std::string& key) {
    for (const char* optional : {"rope_scaling", "experts", "dense_layers", "shared_experts", "router_scores",
                                 "router_scale", "router_bias_rate", "expert_capacity"})  // may be left out
      if (key == optional) return false;
    object.erase(key);
    return true;
  });
}

TEST(ArchitectureJson, RefusesAnotherType) {
  for (const Json& wrong : {Json::array({1}), Json(1.5), Json(true), Json("nonsense"), Json(-1), Json(1e300)}) {
    refuses_each(scaled(), [&](Json& object, const std::string& key) {
      const Json& now = object[key];
      if (now.is_string() && key == "name" && wrong.is_string()) return false;
      if (now.is_boolean() && wrong.is_boolean()) return false;
      if (now.is_number_float() && wrong.is_number() && wrong >= 0) return false;
      object[key] = wrong;
      return true;
    });
  }
  EXPECT_NE(refusal(Json::array()), "");
  EXPECT_NE(refusal(nullptr), "");
}

TEST(ArchitectureJson, RefusesAnUnknownKey) {
  Json json = scaled();
  json["kv_head"] = 2;
  EXPECT_EQ(refusal(json), "state.json: arch: unknown key 'kv_head'; did you mean 'kv_heads'?");
  json = scaled();
  json["rope_scaling"]["high_frequency_factor"] = 2;
  EXPECT_EQ(refusal(json).rfind("state.json: arch: rope_scaling: unknown key 'high_frequency_factor'", 0), 0u)
      << refusal(json);
}

TEST(ArchitectureJson, RefusesWhatCannotBe) {
  Json json = scaled();
  json["qk_norm"] = "batch";
  EXPECT_EQ(refusal(json), "state.json: arch: 'qk_norm' is 'batch', which is not known");
  json.erase("qk_norm");
  json["norm"] = "batch";
  EXPECT_EQ(refusal(json), "state.json: arch: 'norm' is 'batch', which is not known");
  json["norm"] = 3;
  EXPECT_EQ(refusal(json), "state.json: arch: 'norm' is 3, which is not known");
  json = scaled();
  json["kv_heads"] = 3;
  EXPECT_EQ(refusal(json).rfind("state.json: arch: model.kv_heads: 3 must divide", 0), 0u) << refusal(json);
}

}  // namespace
}  // namespace molen::arch
