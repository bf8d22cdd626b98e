#include "plan/resolve.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "arch/json.h"
#include "arch/parameters.h"
#include "base/error.h"
#include "base/test_golden.h"

namespace molen::plan {
namespace {

config::Config with(const std::vector<std::string>& sets) {
  std::vector<std::string> all{"schedule.warmup=\"0 steps\""};
  all.insert(all.end(), sets.begin(), sets.end());
  return config::load(std::nullopt, all);
}

program::Setting setting(const std::vector<std::string>& sets, Machine machine = {}) {
  auto c = with(sets);
  return resolve_setting(c, resolve_architecture(c), machine);
}

std::string call_refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "accepted";
}

TEST(Architecture, PresetAndOverrides) {
  EXPECT_EQ(arch::num_parameters(resolve_architecture(with({"model.preset=llama3-8b"}))), 8030261248);
  const auto changed = resolve_architecture(with({"model.preset=llama-60m", "model.layers=3"}));
  EXPECT_EQ(changed.layers, 3);
  EXPECT_EQ(changed.name, "llama-60m*");
}

// Every key of [model] except preset and family sets the member of the same name, and no other member.
TEST(Architecture, EachKeySetsItsMember) {
  const std::map<std::string, std::pair<std::string, Json>> values{
      {"layers", {"7", 7}},
      {"hidden", {"512", 512}},
      {"ffn", {"1000", 1000}},
      {"heads", {"2", 2}},
      {"kv_heads", {"1", 1}},
      {"head_dim", {"96", 96}},
      {"vocabulary", {"777", 777}},
      {"max_sequence", {"333", 333}},
      {"rope_theta", {"12345.0", 12345.0}},
      {"tied", {"false", false}},
      {"biases", {"true", true}},
      {"norm_eps", {"0.25", 0.25}},
      {"norm", {"layer_plain", "layer_plain"}},
      {"qk_norm", {"all", "all"}},
      {"position", {"alibi", "alibi"}},
      {"activation", {"swiglu", "swiglu"}},
      {"experts", {"6", 6}},
      {"experts_per_token", {"3", 3}},
      {"expert_ffn", {"99", 99}},
      {"dense_layers", {"2", 2}},
      {"shared_experts", {"3", 3}},
      {"router_scores", {"sigmoid", "sigmoid"}},
      {"router_scale", {"2.5", 2.5}},
      {"router_bias_rate", {"0.001", 0.001}},
      {"expert_capacity", {"1.25", 1.25}},
      {"norm_topk", {"false", false}},
      {"balance_loss", {"0.5", 0.5}},
      {"z_loss", {"0.25", 0.25}},
      {"init_std", {"0.5", 0.5}},
      {"rope_scaling",
       {"{ factor = 3.0, low_freq_factor = 1.5, high_freq_factor = 5.0, original_max_sequence = 128 }",
        Json{{"factor", 3.0}, {"low_freq_factor", 1.5}, {"high_freq_factor", 5.0}, {"original_max_sequence", 128}}}}};
  const std::set<std::string> follow{"name", "head_dim", "kv_heads"};  // follow from other sizes unless they are given
  const auto made = [](const std::vector<std::string>& more) {         // a model whose MLP may have biases
    std::vector<std::string> sets{"model.preset=llama-tiny", "data.sequence_length=32", "model.activation=gelu_tanh"};
    sets.insert(sets.end(), more.begin(), more.end());
    return arch::to_json(resolve_architecture(with(sets)));
  };
  const std::set<std::string> of_experts{"experts",        "experts_per_token", "expert_ffn",       "dense_layers",
                                         "shared_experts", "norm_topk",         "balance_loss",     "z_loss",
                                         "router_scores",  "router_scale",      "router_bias_rate", "expert_capacity"};
  const std::vector<std::string> sparse{"model.experts=4", "model.experts_per_token=2"};
  for (const config::Field& field : config::fields()) {
    if (!field.key.starts_with("model.") || field.key == "model.preset" || field.key == "model.family") continue;
    const std::string member = field.key.substr(6);
    ASSERT_TRUE(values.contains(member)) << "no value to try for " << field.key;
    const auto& [text, value] = values.at(member);
    std::vector<std::string> sets = of_experts.contains(member) ? sparse : std::vector<std::string>{};
    const Json before = made(sets);
    sets.push_back(field.key + "=" + text);
    const Json after = made(sets);
    EXPECT_NE(before.value(member, Json()), value) << member;
    EXPECT_EQ(after.value(member, Json()), value) << member;
    for (const auto& [other, was] : before.items()) {
      if (other == member || follow.contains(other)) continue;
      EXPECT_EQ(after.at(other), was) << member << " changes " << other;
    }
  }
}

// An expert is by default as wide as the MLP would be. The number of experts has no default.
TEST(Architecture, Experts) {
  const auto a = resolve_architecture(with({"model.preset=llama-60m", "model.experts=8", "model.experts_per_token=2"}));
  EXPECT_EQ(a.experts, (arch::Experts{.count = 8, .per_token = 2, .ffn = a.ffn, .balance_loss = 0.01}));
  const auto changed = resolve_architecture(with({"model.preset=olmoe-1b-7b", "model.experts=16"}));
  EXPECT_EQ(changed.experts, (arch::Experts{16, 8, 1024, false, 0.01, 0.001}));
  const auto refused = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(), "model.preset=llama-60m");
    return call_refusal([&] { resolve_architecture(with(sets)); });
  };
  EXPECT_EQ(refused({"model.experts=8"}),
            "model.experts_per_token: needed with --set model.experts; it says how many of them a token meets");
  EXPECT_EQ(refused({"model.z_loss=0.1"}),
            "--set model.z_loss: this model has no experts; model.experts says how many");
  EXPECT_EQ(refused({"model.expert_capacity=1.25"}),
            "--set model.expert_capacity: this model has no experts; model.experts says how many");
  EXPECT_EQ(refused({"model.experts=8", "model.experts_per_token=9"}),
            "model.experts_per_token: 9 of model.experts = 8 cannot be chosen");
  const std::string width = "--set model.ffn: every layer of this preset has experts, whose width is model.expert_ffn";
  EXPECT_EQ(refused({"model.preset=olmoe-1b-7b", "model.ffn=96"}), width);
  EXPECT_EQ(refused({"model.preset=olmoe-1b-7b", "model.ffn=96", "model.dense_layers=1"}), "accepted");
  EXPECT_EQ(refused({"model.dense_layers=1"}),
            "--set model.dense_layers: this model has no experts; model.experts says how many");
  EXPECT_EQ(refused({"model.preset=olmoe-1b-7b", "model.dense_layers=16"}),
            "model.dense_layers: 16 of 16 layers; at least one layer has the experts");
  EXPECT_EQ(refused({"model.experts=8", "model.experts_per_token=2", "model.ffn=96"}), "accepted");
}

// kv_heads follows heads when the two were equal; a preset's sizes stay when only others are given.
TEST(Architecture, SizesThatFollowFromOthers) {
  struct Sizes {
    std::int64_t heads, kv_heads, head_dim, ffn;
    bool operator==(const Sizes&) const = default;
  };
  const auto sizes = [](std::vector<std::string> sets) {
    sets.push_back("data.sequence_length=16");
    const auto a = resolve_architecture(with(sets));
    return Sizes{a.heads, a.kv_heads, a.head_dim, a.ffn};
  };
  EXPECT_EQ(sizes({"model.preset=gpt2"}), (Sizes{12, 12, 64, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.heads=6"}), (Sizes{6, 6, 128, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.heads=6", "model.kv_heads=3"}), (Sizes{6, 3, 128, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.kv_heads=4"}), (Sizes{12, 4, 64, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.layers=3"}), (Sizes{12, 12, 64, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.hidden=384"}), (Sizes{12, 12, 32, 3072}));
  EXPECT_EQ(sizes({"model.preset=gpt2", "model.hidden=384", "model.head_dim=64", "model.ffn=100"}),
            (Sizes{12, 12, 64, 100}));
  EXPECT_EQ(sizes({"model.preset=llama3-8b"}), (Sizes{32, 8, 128, 14336}));
  EXPECT_EQ(sizes({"model.preset=llama3-8b", "model.heads=64"}), (Sizes{64, 8, 64, 14336}));
}

TEST(Architecture, SizesThatAreNeeded) {
  config::Config all;
  all.model.family = "gpt";
  all.model.layers = 2, all.model.hidden = 64, all.model.heads = 4, all.model.vocabulary = 100;
  all.model.max_sequence = 512;
  EXPECT_EQ(resolve_architecture(all).name, "custom");
  for (const auto& [key, size] : {std::pair{"model.layers", &decltype(config::Config::model)::layers},
                                  {"model.hidden", &decltype(config::Config::model)::hidden},
                                  {"model.heads", &decltype(config::Config::model)::heads},
                                  {"model.vocabulary", &decltype(config::Config::model)::vocabulary},
                                  {"model.max_sequence", &decltype(config::Config::model)::max_sequence}}) {
    config::Config without = all;
    without.model.*size = std::nullopt;
    EXPECT_EQ(call_refusal([&] { resolve_architecture(without); }),
              fmt::format("{}: needed where model.preset is not given (`molen model list` shows the presets)", key));
  }
  EXPECT_EQ(call_refusal([] { resolve_architecture({}); }),
            "model.preset: a preset, or model.family with its sizes, is needed");
  config::Config unknown = all;
  unknown.model.family = "bert";
  EXPECT_EQ(call_refusal([&] { resolve_architecture(unknown); }), "model.family: unknown value 'bert'");
}

TEST(Architecture, FamiliesFillWhatIsNotSaid) {
  const GoldenMessages golden;
  const auto gpt = resolve_architecture(with({"model.family=gpt", "model.layers=2", "model.hidden=64", "model.heads=4",
                                              "model.vocabulary=100", "model.max_sequence=512"}));
  EXPECT_EQ(gpt.ffn, 256);
  EXPECT_EQ(gpt.head_dim, 16);
  EXPECT_EQ(gpt.kv_heads, 4);
  EXPECT_TRUE(gpt.biases);
  EXPECT_EQ(gpt.position, arch::Position::kLearned);
  EXPECT_EQ(gpt.norm, arch::Norm::kLayer);
  EXPECT_EQ(gpt.activation, arch::Activation::kGeluTanh);
  EXPECT_NOTED(resolve_architecture(with({"model.family=gpt", "model.layers=2"})), UsageError);
}

// Attention without tiles gets the first other kernels that can compute it. In fp64 no kernels use tiles.
TEST(Setting, AttentionWithoutTiles) {
  const GoldenMessages golden;
  const auto of = [](const char* compute, std::vector<std::string> sets = {}, int ranks = 1) {
    Machine machine;
    machine.ranks = machine.local_ranks = ranks;
    for (const char* set : {"model.preset=llama-tiny", "math.flash_attention=false"}) sets.emplace_back(set);
    sets.push_back(std::string("precision.compute=") + compute);
    return setting(sets, machine);
  };
  using arch::Kernels;
  for (const char* compute : {"fp32", "bf16", "fp16"}) {
    const auto s = of(compute);
    EXPECT_EQ(s.kernels_of(arch::Part::kAttention), Kernels("unfused")) << compute;
    EXPECT_EQ(s.kernels_of(arch::Part::kNormQkv), s.kernels) << compute;
  }
  Machine device;
  device.cuda = true;
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const auto s = setting({"model.preset=llama-tiny", "math.flash_attention=false", compute}, device);
    EXPECT_EQ(s.kernels_of(arch::Part::kAttention), Kernels("unfused")) << compute;
  }
  EXPECT_TRUE(of("fp64").other_kernels.empty());
  EXPECT_TRUE(of("fp32", {"math.kernels=reference"}).other_kernels.empty());
  for (const char* compute : {"fp32", "bf16"}) EXPECT_NOTED(of(compute, {"parallel.context=2"}, 2), UsageError);
}

// A request that is not built is refused and never runs as something else.
TEST(Setting, RefusesWhatIsNotBuilt) {
  const GoldenMessages golden;
  for (const char* set : {"parallel.context_form=ring", "parallel.virtual_stages=2", "parallel.schedule=gpipe",
                          "parallel.schedule=interleaved", "train.deterministic=false", "precision.reduce=fp64"}) {
    SCOPED_TRACE(set);
    Machine two;
    two.ranks = two.local_ranks = 2;
    try {
      setting({"model.preset=llama-tiny", "precision.compute=fp32", set}, two);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      const std::string key(set, std::strchr(set, '='));
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
      // The message suggests a value, not the key.
      EXPECT_EQ(std::string(error.what()).find("only " + key), std::string::npos) << error.what();
    }
  }
  EXPECT_NOTED(setting({"model.preset=llama-tiny", "precision.compute=fp32", "parallel.data_replicate=2"}), UsageError);
}

TEST(Setting, StagesOnAMesh) {
  Machine eight;
  eight.ranks = 8;
  eight.local_ranks = 4;
  const auto s =
      setting({"model.preset=llama-tiny", "precision.compute=fp32", "parallel.pipeline=2", "parallel.virtual_stages=2",
               "parallel.schedule=interleaved", "parallel.tensor=2", "parallel.zero=1", "batch.global=8"},
              eight);
  EXPECT_EQ(s.stages(), 2);
  EXPECT_EQ(s.shards(), 2);
  EXPECT_EQ(s.pipeline.chunks, 2);
  EXPECT_EQ(s.pipeline.schedule, program::ScheduleKind::kInterleaved);
  const auto refused = [&](std::vector<std::string> sets, const std::string& says) {
    sets.insert(sets.end(), {"model.preset=llama-tiny", "precision.compute=fp32"});
    try {
      setting(sets, eight);
      ADD_FAILURE() << "accepted: " << says;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused({"parallel.pipeline=3"}, "3 stages do not divide the world of 8 ranks; 1, 2 and 4 do");
  refused({"parallel.pipeline=8"}, "8 stages of 1 chunk need a layer each; the model has 6; 1, 2 and 4 do");
  refused({"parallel.pipeline=2", "parallel.schedule=./nowhere.csv"}, "nowhere.csv");
  refused({"parallel.pipeline=2", "parallel.schedule=interleaved"}, "parallel.virtual_stages is 1");
  refused({"parallel.pipeline=2", "parallel.stage_layers=[4, 3]"},
          "the list has 2 counts and 7 layers in all, but 2 stages of 1 chunk need 2 counts, and the model has 6 "
          "layers; a balanced list is");
  refused({"parallel.pipeline=2", "parallel.stage_layers=[2, 2, 2]"}, "3 counts and 6 layers");
  refused({"parallel.stage_layers=[6]"}, "parallel.pipeline is 1");
  refused({"parallel.unit_layers=7"}, "units of 7 layers; the model has 6");
}

TEST(Setting, StagesAsTheyAreCounted) {
  Machine two;
  two.ranks = two.local_ranks = 2;
  const auto s = setting({"model.preset=llama-tiny", "precision.compute=fp32", "parallel.pipeline=2",
                          "parallel.stage_layers=[5, 1]", "parallel.unit_layers=half"},
                         two);
  EXPECT_EQ(s.pipeline.layers, (std::vector<std::int64_t>{5, 1}));
  EXPECT_EQ(s.unit_layers, program::kHalfLayer);
}

// Groups that must communicate within a node are within a node in any order of axes.
TEST(Setting, GroupsShareANodeInAnyOrder) {
  const GoldenMessages golden;
  Machine sixteen;
  sixteen.ranks = 16;
  sixteen.local_ranks = 8;
  const auto with = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"model.preset=llama-tiny", "precision.compute=fp32", "batch.global=16"});
    return setting(sets, sixteen);
  };
  const std::string tp_first = R"(parallel.order=["tp", "pp", "dp-replicate", "dp-shard", "cp"])",
                    pp_inside = R"(parallel.order=["dp-replicate", "dp-shard", "pp", "cp", "tp"])";
  EXPECT_EQ(with({"parallel.tensor=2"}).tensor_ranks(), 2);
  EXPECT_NOTED(with({"parallel.tensor=2", tp_first}), UsageError);
  EXPECT_EQ(with({"parallel.sharding=HYBRID_SHARD"}).shards(), 8);
  EXPECT_NOTED(with({"parallel.sharding=HYBRID_SHARD", "parallel.pipeline=2", pp_inside}), UsageError);
  EXPECT_EQ(
      with({"parallel.sharding=HYBRID_SHARD", "parallel.pipeline=2", "parallel.data_shard=4", pp_inside}).shards(), 4);
}

TEST(Setting, KernelsAreNotReplaced) {
  const GoldenMessages golden;
  EXPECT_NOTED(setting({"model.preset=llama-tiny", "precision.compute=bf16", "math.kernels=reference"}), UsageError);
  EXPECT_NOTED(setting({"model.preset=llama-tiny", "precision.compute=fp64", "math.kernels=fused"}), UsageError);
  EXPECT_EQ(setting({"model.preset=llama-tiny", "precision.compute=fp64"}).kernels, arch::Kernels::kReference);
}

TEST(Setting, ContextRanksOnAMesh) {
  Machine eight;
  eight.ranks = 8;
  eight.local_ranks = 4;
  const auto with = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"model.preset=llama-tiny", "precision.compute=fp32", "batch.global=8"});
    return setting(sets, eight);
  };
  const auto s = with({"parallel.context=2", "parallel.context_form=ring", "parallel.tensor=2", "parallel.zero=3"});
  EXPECT_TRUE(s.ring());
  EXPECT_EQ(s.data_ranks(), 2);
  EXPECT_EQ(s.shards(), 4) << "context ranks share the state too";
  EXPECT_EQ(s.tokens(), s.micro_batch * s.sequence / 2);
  // A node of four ranks holds two context ranks of each of two data ranks.
  const auto hybrid = with({"parallel.context=2", "parallel.sharding=HYBRID_SHARD"});
  EXPECT_EQ(hybrid.shards(), 4);
  EXPECT_EQ(hybrid.replicas(), 2);
  const auto refused = [&](std::vector<std::string> sets, const std::string& says) {
    try {
      with(sets);
      ADD_FAILURE() << "accepted: " << says;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused({"parallel.context=3"}, "3 ranks for each sequence do not divide the world of 8 ranks");
  refused({"parallel.context=4", "data.sequence_length=100"}, "do not divide by 8, 104 tokens do");
  refused({"parallel.context=8", "parallel.sharding=HYBRID_SHARD"},
          "a node of 4 ranks, which 1 tensor x 8 context ranks do not divide");
  EXPECT_EQ(with({"parallel.context=8", "parallel.sharding=HYBRID_SHARD", "parallel.data_shard=1"}).shards(), 8);
  refused({"data.document_mask=true", "model.head_dim=264"}, "heads of 264 are more than the 256");
  eight.cuda = true;
  EXPECT_EQ(with({"parallel.context=2", "data.document_mask=true", "math.kernels=fused"}).kernels,
            arch::Kernels::kAten);
  EXPECT_NO_THROW(with({"data.document_mask=true", "model.head_dim=264"}));
  EXPECT_EQ(with({"precision.compute=fp64"}).kernels, arch::Kernels::kAten);
  for (const char* compute : {"precision.compute=fp64", "precision.compute=fp32"})
    refused({compute, "math.kernels=reference"}, "the reference kernels compute in the host's memory, not on cuda");
}

TEST(Setting, ShardingNamesAreStagesOnAMesh) {
  const GoldenMessages golden;
  struct Case {
    std::vector<std::string> sets;
    int zero, shards, replicas;
    bool own_over_dp;
  };
  Machine eight;
  eight.ranks = 8;
  eight.local_ranks = 4;
  for (const Case& c :
       {Case{{}, 0, 8, 1, false}, Case{{"parallel.zero=1"}, 1, 8, 1, false},
        Case{{"parallel.sharding=SHARD_GRAD_OP"}, 2, 8, 1, false},
        Case{{"parallel.sharding=FULL_SHARD"}, 3, 8, 1, false}, Case{{"parallel.zero=3"}, 3, 8, 1, false},
        Case{{"parallel.zero=3", "parallel.data_replicate=4"}, 3, 2, 4, false},
        Case{{"parallel.sharding=HYBRID_SHARD"}, 3, 4, 2, false},
        Case{{"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=2"}, 3, 2, 4, false},
        Case{{"parallel.sharding=HYBRID_SHARD_ZERO2", "parallel.data_replicate=4"}, 2, 2, 4, false},
        Case{{"parallel.sharding=HYBRID_SHARD", "parallel.zero=1"}, 3, 4, 2, true}}) {
    auto sets = c.sets;
    sets.insert(sets.end(), {"model.preset=llama-tiny", "precision.compute=fp32", "batch.global=32"});
    const program::Setting s = setting(sets, eight);
    EXPECT_EQ(s.zero, c.zero);
    EXPECT_EQ(s.shards(), c.shards);
    EXPECT_EQ(s.replicas(), c.replicas);
    EXPECT_EQ(s.own_over_dp, c.own_over_dp);
  }
  for (const std::vector<std::string>& sets :
       std::vector<std::vector<std::string>>{{"parallel.sharding=FULL_SHARD", "parallel.data_replicate=2"},
                                             {"parallel.data_replicate=3"},
                                             {"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=3"},
                                             {"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=1"}}) {
    auto all = sets;
    all.insert(all.end(), {"model.preset=llama-tiny", "precision.compute=fp32"});
    EXPECT_NOTED(setting(all, eight), UsageError) << sets.back();
  }
}

TEST(Setting, TakesWhatTheConfigurationSays) {
  const auto s =
      setting({"model.preset=llama-tiny", "precision.compute=fp32", "batch.global=24", "batch.micro=6",
               "data.sequence_length=48", "data.document_mask=true", "math.threads=3", "parallel.prefetch=5"});
  EXPECT_EQ(s.global_batch, 24);
  EXPECT_EQ(s.micro_batch, 6);
  EXPECT_EQ(s.sequence, 48);
  EXPECT_TRUE(s.document_mask);
  EXPECT_EQ(s.threads, 3);
  EXPECT_EQ(s.prefetch, 5);
  EXPECT_EQ(s.head_chunk, 1024);
  EXPECT_EQ(s.kernels, arch::Kernels::kFused);
  EXPECT_EQ(call_refusal([] {
              setting({"model.preset=llama-tiny", "data.sequence_length=1025"});
            }),
            "--set data.sequence_length: 1025 is more than model.max_sequence 1024");
  EXPECT_EQ(setting({"model.preset=llama-tiny", "data.sequence_length=1024"}).sequence, 1024);
}

// A resumed run must find the threads that the first start chose, and a reader of config.toml must see their origin.
TEST(Setting, ThreadsOfTheMachineAreWrittenBack) {
  Machine two;
  two.ranks = two.local_ranks = 2;
  auto c = with({"model.preset=llama-tiny", "precision.compute=fp32"});
  ASSERT_EQ(c.math.threads, 0);
  const auto s = resolve_setting(c, resolve_architecture(c), two);
  EXPECT_EQ(s.threads, auto_threads(2));
  EXPECT_EQ(c.math.threads, s.threads);
  EXPECT_EQ(c.where("math.threads"), "derived: math.threads");
  c = with({"model.preset=llama-tiny", "precision.compute=fp32", "math.threads=7"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), two).threads, 7);
  EXPECT_EQ(c.where("math.threads"), "--set math.threads");
}

TEST(Setting, AutoThreadsShareTheCores) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const int cores = CPU_COUNT(&mask);
  EXPECT_EQ(auto_threads(1), cores);
  EXPECT_EQ(auto_threads(0), cores);
  EXPECT_EQ(auto_threads(cores), 1);
  EXPECT_EQ(auto_threads(2 * cores), 1);
}

TEST(Setting, RefusalsSayWhatWouldDo) {
  const auto refused = [](std::vector<std::string> sets, bool cuda = false) {
    sets.push_back("model.preset=llama-tiny");
    Machine machine;
    machine.cuda = cuda;
    return call_refusal([&] { setting(sets, machine); });
  };
  EXPECT_EQ(refused({"energy.slowdown=\"5 %\""}),
            "--set energy.slowdown: only the policies min_energy, sweep and slack take a bound of the slowdown; "
            "energy.policy is none");
  EXPECT_EQ(
      refused({"energy.power_budget=\"300 W\"", "energy.policy=min_energy"}),
      "--set energy.power_budget: a budget of power chooses the settings itself, so energy.policy must be none or "
      "monitor; it is min_energy");
  EXPECT_EQ(refused({"energy.policy=min_enery"}),
            "--set energy.policy: no policy is called 'min_enery'; there are none, monitor, min_energy, min_time, "
            "min_time_energy, sweep, slack; did you mean 'min_energy'?");
  EXPECT_NE(refused({"energy.power_budget=\"300 W\"", "energy.policy=slack"}), "accepted");
  EXPECT_EQ(refused({"energy.policy=slack", "energy.slowdown=\"5 %\""}), "accepted");
  for (const char* policy : {"none", "monitor", "min_energy", "min_time", "min_time_energy", "sweep", "slack"})
    EXPECT_EQ(refused({fmt::format("energy.policy={}", policy)}), "accepted");
  EXPECT_EQ(refused({"energy.policy=min_energy", "energy.slowdown=\"5 %\""}), "accepted");
  EXPECT_EQ(refused({"energy.policy=sweep", "energy.slowdown=\"150 %\""}),
            "--set energy.slowdown: a step may take less than twice as long, so it must be below 100 %; it is 150 %");
  EXPECT_EQ(refused({"energy.power_budget=\"300 W\""}), "accepted");
  EXPECT_EQ(refused({"math.flash_attention=false", "precision.compute=bf16"}, true), "accepted");

  EXPECT_EQ(refused({"train.deterministic=false"}), "--set train.deterministic: only true is built yet");
  EXPECT_EQ(refused({"precision.compute=fp32", "precision.reduce=fp64"}),
            "--set precision.reduce: only fp32, bf16, fp16 with this compute precision is built yet");
  EXPECT_EQ(refused({"precision.compute=fp64", "precision.reduce=fp32"}),
            "--set precision.reduce: fp32 is narrower than precision.compute = fp64");
  EXPECT_EQ(refused({"precision.compute=fp32", "precision.master=fp64"}),
            "--set precision.master: only fp32 with this compute precision is built yet");
  EXPECT_EQ(refused({"precision.compute=bf16", "math.kernels=reference"}),
            "--set math.kernels: the reference kernels compute in fp64 or fp32, not in bf16");
  EXPECT_EQ(refused({"precision.compute=fp32", "math.kernels=reference"}, true),
            "--set math.kernels: the reference kernels compute in the host's memory, not on cuda; device.kind = "
            "\"cpu\" does");
  EXPECT_EQ(refused({"precision.compute=fp64", "math.kernels=fused"}),
            "--set math.kernels: fp64 has the reference kernels alone on the host");
  EXPECT_EQ(refused({"parallel.recompute=full/7"}), "--set parallel.recompute: every 7 layers of a model that has 6");
  EXPECT_EQ(refused({"parallel.recompute=full/6", "precision.compute=fp32"}), "accepted");
  EXPECT_EQ(refused({"parallel.recompute=qk_norm"}),
            "--set parallel.recompute: 'qk_norm' is no part of this model's layers");
  EXPECT_EQ(refused({"parallel.recompute=qk_norm", "model.qk_norm=head", "precision.compute=fp32"}), "accepted");
  const std::vector<std::string> sparse{"model.experts=4", "model.experts_per_token=2"};
  const auto refused_experts = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), sparse.begin(), sparse.end());
    return refused(sets);
  };
  EXPECT_EQ(refused_experts({"parallel.recompute=full", "precision.compute=fp32"}), "accepted");
  EXPECT_EQ(refused_experts({"precision.compute=fp16"}),
            "--set precision.compute: ATen's kernels of experts compute in bf16, not in fp16");
  EXPECT_EQ(refused_experts({"precision.compute=bf16"}), "accepted");
  EXPECT_EQ(refused_experts({"precision.compute=bf16", "model.expert_capacity=1.25"}), "accepted");
  EXPECT_EQ(refused_experts({"precision.compute=bf16", "precision.reduce=bf16"}), "accepted");
  EXPECT_EQ(refused_experts({"precision.compute=bf16", "precision.reduce=bf16", "model.router_bias_rate=0.001"}),
            "--set precision.reduce: messages of bf16 would round the numbers of tokens that move the biases of "
            "routers; set fp32");
  EXPECT_EQ(refused({"data.document_mask=true", "model.head_dim=264", "precision.compute=fp32"}),
            "--set data.document_mask: heads of 264 are more than the 256 of attention in tiles within documents; "
            "math.flash_attention = false has no such limit");
  EXPECT_EQ(refused({"data.document_mask=true", "model.head_dim=264", "precision.compute=fp32",
                     "math.flash_attention=false"}),
            "accepted");
  EXPECT_EQ(refused({"data.document_mask=true", "model.head_dim=256", "precision.compute=fp32"}), "accepted");
  EXPECT_EQ(
      refused({"data.document_mask=true", "model.head_dim=264", "precision.compute=fp32", "math.kernels=reference"}),
      "accepted");
}

TEST(Setting, NumbersFollowThePrecision) {
  const auto s = [](const char* compute, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"model.preset=llama-tiny", std::string("precision.compute=") + compute});
    return setting(more);
  };
  for (const char* compute : {"fp32", "bf16", "fp16"}) {
    EXPECT_EQ(s(compute).master, DType::kF32) << compute;
    EXPECT_EQ(s(compute).reduce, DType::kF32) << compute;
  }
  EXPECT_EQ(s("fp64").master, DType::kF64);
  EXPECT_EQ(s("fp64").reduce, DType::kF64);
  EXPECT_EQ(s("bf16", {"precision.reduce=bf16"}).reduce, DType::kBF16);
  EXPECT_EQ(s("fp16", {"precision.reduce=fp16"}).reduce, DType::kF16);
  EXPECT_EQ(s("bf16").kernels, arch::Kernels::kAten);
  EXPECT_EQ(s("fp32").kernels, arch::Kernels::kFused);
  EXPECT_EQ(s("fp32", {"math.kernels=reference"}).kernels, arch::Kernels::kReference);
}

TEST(Setting, SaysWhereAPrecisionComesFrom) {
  const auto origin = [](const Machine& machine) {
    auto c = with({"model.preset=llama-tiny", "math.threads=3"});
    resolve_setting(c, resolve_architecture(c), machine);
    return c.where("precision.compute");
  };
  Machine machine;
  EXPECT_EQ(origin(machine), "derived: not measured on this machine: precision.compute");
  int threads = 0;
  machine.measure_precision = [&](int n) {
    threads = n;
    return PrecisionRates{100.4, 300.6};
  };
  EXPECT_EQ(origin(machine), "measured: fp32 100, bf16 301 GFLOP/s: precision.compute");
  EXPECT_EQ(threads, 3);
  machine.measure_precision = [](int) { return PrecisionRates{200.0, 200.0, "a device"}; };
  EXPECT_EQ(origin(machine), "measured on a device: fp32 200, bf16 200 GFLOP/s: precision.compute");
  auto c = with({"model.preset=llama-tiny"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kF32) << "no faster, no narrower";
  machine.measure_precision = nullptr;
  machine.cuda = true;
  EXPECT_EQ(origin(machine), "derived: bf16 on CUDA, not measured: precision.compute");
}

TEST(Setting, AutoPrecisionIsMeasuredAndRecorded) {
  Machine machine;
  machine.measure_precision = [](int) { return PrecisionRates{100.0, 300.0}; };
  auto c = with({"model.preset=llama-tiny"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kBF16);
  EXPECT_EQ(c.precision.compute, "bf16");
  machine.measure_precision = [](int) { return PrecisionRates{300.0, 100.0}; };
  c = with({"model.preset=llama-tiny"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kF32);
  // A device is measured too; the fixed rule is only for planning away from the device.
  machine.cuda = true;
  c = with({"model.preset=llama-tiny"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kF32);
  machine.measure_precision = nullptr;
  c = with({"model.preset=llama-tiny"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kBF16);
  machine.cuda = false;
  // A requested type is honoured.
  c = with({"model.preset=llama-tiny", "precision.compute=bf16"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).compute, DType::kBF16);
}

TEST(Setting, HeadChunksOfADeviceAreLarger) {
  Machine machine;
  auto c = with({"model.preset=llama3.2-1b", "batch.global=1"});
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).head_chunk, 256);
  machine.cuda = true;
  EXPECT_EQ(resolve_setting(c, resolve_architecture(c), machine).head_chunk, 2048);
}

TEST(Horizon, StepsTokensEpochs) {
  const auto c = with({"batch.global=8", "data.sequence_length=100"});
  EXPECT_EQ(steps_of(c, config::steps(7), "x", 0), 7);
  EXPECT_EQ(steps_of(c, config::tokens(8001), "x", 0), 11);
  EXPECT_EQ(steps_of(c, config::tokens(8000), "x", 0), 10);
  EXPECT_EQ(steps_of(c, {config::Horizon::Unit::kEpochs, 2.0}, "x", 100), 25);
  EXPECT_EQ(steps_of(c, {config::Horizon::Unit::kEpochs, 0.5}, "x", 17), 2);
  EXPECT_EQ(steps_of(c, {config::Horizon::Unit::kSeconds, 2.0}, "x", 100), -1);
}

TEST(Setting, OffloadIsWhatTheListNames) {
  const std::vector<std::pair<std::string, program::Offload>> lists{
      {"[]", {false, false, false, false}},
      {"[\"optimizer\"]", {true, false, false, false}},
      {"[\"optimizer\", \"gradients\"]", {true, true, false, false}},
      {"[\"activations\", \"optimizer\"]", {true, false, false, true}},
      {"[\"optimizer\", \"gradients\", \"parameters\", \"activations\"]", {true, true, true, true}}};
  for (const auto& [list, want] : lists)
    EXPECT_EQ(setting({"model.preset=llama-tiny", "parallel.offload=" + list}).offload, want) << list;
}

TEST(Setting, ContextRanksAreRefusedWithTheirFigures) {
  Machine machine;
  machine.ranks = machine.local_ranks = 4;
  try {
    setting({"model.preset=llama-tiny", "data.sequence_length=50", "parallel.context=4"}, machine);
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("4 ranks have two pieces each of every sequence; 50 tokens"), std::string::npos) << text;
    EXPECT_NE(text.find("do not divide by 8, 56 tokens do"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace molen::plan
