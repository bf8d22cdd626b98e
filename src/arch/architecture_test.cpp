#include "arch/architecture.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "arch/json.h"
#include "arch/parameters.h"
#include "base/error.h"
#include "base/file.h"
#include "base/test_golden.h"

namespace molen::arch {
namespace {

std::string reason(const Architecture& a) {
  try {
    validate(a);
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

TEST(Presets, AreValidAndNamedOnce) {
  std::set<std::string> names;
  for (const Architecture& a : presets()) {
    EXPECT_EQ(reason(a), "") << a.name;
    EXPECT_TRUE(names.insert(a.name).second) << a.name;
    // Qwen3's heads have 128 values at any hidden size.
    EXPECT_EQ(a.head_dim, a.norms_qk() ? 128 : a.hidden / a.heads) << a.name;
    if (!a.norms_qk()) {
      EXPECT_EQ(a.heads * a.head_dim, a.hidden) << a.name;
    }
    EXPECT_EQ(&preset(a.name), &a);
  }
  EXPECT_EQ(presets().size(), 28u);
}

// Every member of every preset equals the published model (tests/golden/arch): checkpoints and runs carry the presets'
// names.
TEST(Presets, StayAsTheyAre) {
  const Json golden = parse_json(read_file("tests/golden/arch/presets.json"), "presets");
  ASSERT_EQ(golden.size(), presets().size());
  for (std::size_t i = 0; i < golden.size(); ++i) EXPECT_EQ(to_json(presets()[i]), golden[i]);
}

TEST(Presets, MisspeltNamesGetTheNearest) {
  try {
    preset("lama3-8b");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'llama3-8b'"), std::string::npos) << error.what();
  }
}

TEST(Validate, NamesTheKeyThatCannotBe) {
  const GoldenMessages golden;
  struct Case {
    const char* key;
    std::function<void(Architecture&)> damage;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases{
      {"layers", [](auto& a) { a.layers = 0; }},
      {"layers", [](auto& a) { a.layers = std::int64_t{1} << 40; }},
      {"hidden", [](auto& a) { a.hidden = -1; }},
      {"ffn", [](auto& a) { a.ffn = 0; }},
      {"heads", [](auto& a) { a.heads = 0; }},
      {"kv_heads", [](auto& a) { a.kv_heads = 0; }},
      {"kv_heads", [](auto& a) { a.kv_heads = 3; }},
      {"kv_heads", [](auto& a) { a.kv_heads = 2 * a.heads; }},
      {"head_dim", [](auto& a) { a.head_dim = 63; }},
      {"head_dim", [](auto& a) { a.head_dim = 1 << 20; }},
      {"vocabulary", [](auto& a) { a.vocabulary = std::numeric_limits<std::int64_t>::max(); }},
      {"max_sequence", [](auto& a) { a.max_sequence = 0; }},
      {"rope_theta", [=](auto& a) { a.rope_theta = nan; }},
      {"rope_theta", [](auto& a) { a.rope_theta = -1; }},
      {"norm_eps", [=](auto& a) { a.norm_eps = inf; }},
      {"init_std", [](auto& a) { a.init_std = 0; }},
      {"biases", [](auto& a) { a.biases = true; }},
      {"rope_scaling.factor", [](auto& a) { a.rope_scaling = RopeScaling{.factor = 0}; }},
      {"rope_scaling.high_freq_factor", [](auto& a) { a.rope_scaling = RopeScaling{.high_freq_factor = 1}; }},
      {"rope_scaling", [](auto& a) { a.position = Position::kAlibi, a.rope_scaling.emplace(); }},
      {"experts",
       [](auto& a) {
         a.experts = Experts{0, 1, 8};
       }},
      {"experts",
       [](auto& a) {
         a.layers = 1024, a.experts = Experts{1 << 10, 1, 8};
       }},
      {"experts_per_token",
       [](auto& a) {
         a.experts = Experts{4, 0, 8};
       }},
      {"expert_ffn",
       [](auto& a) {
         a.layers = 1 << 10, a.experts = Experts{128, 2, 1 << 18};
       }},
      {"experts_per_token",
       [](auto& a) {
         a.experts = Experts{4, 5, 8};
       }},
      {"expert_ffn",
       [](auto& a) {
         a.experts = Experts{4, 2, 0};
       }},
      {"dense_layers", [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .dense_layers = -1}; }},
      {"dense_layers",
       [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .dense_layers = a.layers}; }},
      {"shared_experts", [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .shared = -1}; }},
      {"shared_experts",
       [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 1 << 10, .shared = 1025}; }},
      {"router_scale", [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .scale = 0.0}; }},
      {"router_bias_rate",
       [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .bias_rate = -1e-3}; }},
      {"z_loss",
       [](auto& a) {
         a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .z_loss = 1e-3, .scores = RouterScores::kSigmoid};
       }},
      {"balance_loss",
       [](auto& a) {
         a.experts = Experts{4, 2, 8, true, -0.5};
       }},
      {"z_loss", [=](auto& a) { a.experts = Experts{4, 2, 8, true, 0.01, nan}; }},
      {"expert_capacity", [](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .capacity = -0.5}; }},
      {"expert_capacity", [=](auto& a) { a.experts = Experts{.count = 4, .per_token = 2, .ffn = 8, .capacity = nan}; }},
      {"biases",
       [](auto& a) {
         a.experts = Experts{4, 2, 8}, a.activation = Activation::kGeluTanh, a.biases = true;
       }},
  };
  for (const Case& c : cases) {
    Architecture a = preset("llama-60m");
    c.damage(a);
    EXPECT_EQ(reason(a).rfind(std::string("model.") + c.key + ":", 0), 0u) << c.key << ": " << reason(a);
    EXPECT_NOTED(parameters(a), UsageError) << c.key;
  }
}

TEST(Validate, OddHeadsWithoutRopeAreFine) {
  Architecture a = preset("gpt2");
  a.heads = a.kv_heads = 3, a.head_dim = 7, a.hidden = 21;
  EXPECT_EQ(reason(a), "");
}

// For any sizes, validate refuses them, or every count is positive and did not overflow.
RC_GTEST_PROP(Validate, AcceptedSizesNeverOverflow, ()) {
  const auto any = [] {
    return rc::gen::element<std::int64_t>(1, 2, 16, 127, 1 << 10, 1 << 20, (1 << 20) + 1, std::int64_t{1} << 62);
  };
  Architecture a = preset("llama-60m");
  a.layers = *rc::gen::element<std::int64_t>(-1, 0, 1, 7, 1 << 14, std::int64_t{1} << 62);
  a.hidden = *any(), a.ffn = *any();
  a.kv_heads = *rc::gen::element<std::int64_t>(1, 2, 3, 1 << 18);
  a.heads = a.kv_heads * *rc::gen::element<std::int64_t>(1, 2, 4);
  a.head_dim = *rc::gen::element<std::int64_t>(1, 2, 64, 1 << 18, std::int64_t{1} << 50);
  a.vocabulary = *rc::gen::element<std::int64_t>(1, 5, 1 << 28, std::int64_t{1} << 60);
  a.max_sequence = *any();
  a.tied = *rc::gen::arbitrary<bool>();
  if (!reason(a).empty()) return;
  const std::int64_t count = num_parameters(a);
  RC_ASSERT(count > 0);
  const double expected =
      static_cast<double>(a.layers) * static_cast<double>(a.hidden) *
          (2.0 * static_cast<double>(a.query_size()) + 2.0 * static_cast<double>(a.kv_size()) +
           3.0 * static_cast<double>(a.ffn) + 2.0) +
      static_cast<double>(a.hidden) * (1.0 + static_cast<double>(a.vocabulary) * (a.tied ? 1.0 : 2.0));
  RC_ASSERT(std::abs(static_cast<double>(count) - expected) <= 1e-12 * expected);
}

}  // namespace
}  // namespace molen::arch
