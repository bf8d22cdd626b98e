#include "plan/framework.h"

#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "base/error.h"
#include "plan/published_runs.h"
#include "plan/step_prediction.h"
#include "plan/trial.h"

namespace molen::plan {
namespace {

plan::Run stated_run() {
  plan::Run run;
  run.id = "x";
  run.layers = 4, run.hidden = 1024, run.ffn = 4096, run.heads = 16, run.kv_heads = 16, run.vocabulary = 51200;
  run.sequence = 1024, run.mlp = "gelu", run.tied = true;
  run.gpu = "H100-SXM-80GB", run.gpus = 32, run.network_bytes_per_s = 10e9;
  run.tp = 2, run.pp = 2, run.dp = 8, run.chunks = 1, run.schedule = "1f1b";
  run.zero = 1, run.micro_batch = 2, run.global_batch = 64, run.recompute = "none";
  run.precision = "bf16", run.grad_dtype = "fp32";
  return run;
}

std::string recompute_key(const std::string& of_row) {
  if (of_row == "full") return "\"full\"";
  if (of_row == "selective_layer") return "\"full/2\"";
  if (of_row == "selective_attention") return "[\"attention\"]";
  if (of_row == "selective_op") return "[\"norm_up\", \"activation\"]";
  return "\"none\"";
}

// The configuration of the same run.
std::string keys_of(const plan::Run& run) {
  const bool gated = run.mlp == "swiglu";
  std::string text = fmt::format(
      "[model]\nfamily = \"{}\"\nlayers = {}\nhidden = {}\nffn = {}\nheads = {}\nkv_heads = {}\nvocabulary = {}\n"
      "tied = {}\n[data]\nsequence_length = {}\n[batch]\nglobal = {}\nmicro = {}\n[precision]\ncompute = \"bf16\"\n"
      "[math]\nflash_attention = {}\n",
      gated ? "llama" : "gpt", run.layers, run.hidden, run.ffn, run.heads, run.kv_heads, run.vocabulary, run.tied,
      run.sequence, run.global_batch, run.micro_batch.value(), run.flash_attention);
  text += fmt::format("[parallel]\ntensor = {}\nsequence = {}\npipeline = {}\ncontext = {}\nrecompute = {}\n", run.tp,
                      run.sequence_parallel, run.pp, run.cp, recompute_key(run.recompute.value()));
  if (run.shard_group > 0)
    text += fmt::format("sharding = \"HYBRID_SHARD\"\ndata_shard = {}\n", run.shard_group / run.cp);
  else
    text += fmt::format("zero = {}\n", run.zero.value());
  if (run.chunks.value() > 1)
    text += fmt::format("virtual_stages = {}\nschedule = \"interleaved\"\n", run.chunks.value());
  const int places = run.pp * run.chunks.value();
  if (run.pp > 1)
    text +=
        fmt::format("stage_layers = [{}]\n",
                    fmt::join(std::vector<std::int64_t>(static_cast<std::size_t>(places), run.layers / places), ", "));
  std::vector<std::string> overlap;
  for (const std::string& axis : run.overlap) overlap.push_back("\"" + axis + "\"");
  return text + fmt::format(
                    "[framework]\nkind = \"pytorch\"\ngradients = \"{}\"\nproducts = \"{}\"\ncompiled = {}\n"
                    "overlap = [{}]\n",
                    run.grad_dtype == "fp32" ? "fp32" : "16-bit", run.precision == "fp8" ? "fp8" : "16-bit",
                    run.compiled, fmt::join(overlap, ", "));
}

using Change = std::function<void(plan::Run&)>;

void sharded(plan::Run& r, int zero) {
  r.tp = r.pp = 1, r.dp = 32, r.zero = zero;
}

const std::pair<const char*, Change> kRuns[] = {
    {"gradients in 16 bits", [](plan::Run& r) { r.grad_dtype = "bf16"; }},
    {"fp8", [](plan::Run& r) { r.precision = "fp8"; }},
    {"compiled", [](plan::Run& r) { r.compiled = true; }},
    {"scores written", [](plan::Run& r) { r.flash_attention = false; }},
    {"scores written and computed again",
     [](plan::Run& r) { r.flash_attention = false, r.recompute = "selective_attention"; }},
    {"recompute of ops", [](plan::Run& r) { r.recompute = "selective_op"; }},
    {"recompute of every other layer",
     [](plan::Run& r) { r.flash_attention = false, r.recompute = "selective_layer"; }},
    {"recompute", [](plan::Run& r) { r.recompute = "full"; }},
    {"dp overlaps", [](plan::Run& r) { r.overlap = {"dp"}; }},
    {"pp overlaps", [](plan::Run& r) { r.overlap = {"pp"}; }},
    {"sharded rows", [](plan::Run& r) { r.sequence_parallel = true; }},
    {"tp overlaps", [](plan::Run& r) { r.sequence_parallel = true, r.overlap = {"tp"}; }},
    {"whole gradients", [](plan::Run& r) { r.zero = 0; }},
    {"ZeRO-2", [](plan::Run& r) { sharded(r, 2), r.grad_dtype = "fp16"; }},
    {"ZeRO-3", [](plan::Run& r) { sharded(r, 3); }},
    {"ZeRO-3 ahead", [](plan::Run& r) { sharded(r, 3), r.overlap = {"dp"}; }},
    {"ZeRO-3 in groups", [](plan::Run& r) { sharded(r, 3), r.overlap = {"dp"}, r.shard_group = 8; }},
    {"ZeRO-3 of a pipeline", [](plan::Run& r) { r.zero = 3, r.tp = 1, r.dp = 16; }},
    {"interleaved", [](plan::Run& r) { r.chunks = 2, r.schedule = "interleaved_1f1b", r.overlap = {"dp", "pp"}; }},
    {"context ranks", [](plan::Run& r) { r.cp = 2, r.dp = 4; }},
    {"gated", [](plan::Run& r) { r.mlp = "swiglu", r.ffn = 2816, r.tied = false, r.kv_heads = 8; }}};

// Step, memory as the driver shows it, memory of the framework's own buffers, relative spread of the step.
using Figures = std::tuple<double, double, double, double>;

Figures of_row(const plan::Run& run) {
  const auto p = predict(run, sim::Factors::shipped());
  EXPECT_TRUE(p.ok()) << p.reason();
  if (!p.ok()) return {};
  const RunPrediction& found = p.value();
  return {found.step_s, found.memory_bytes, found.allocator_bytes, sim::spread_of(found.errors)};
}

Figures of_keys(const plan::Run& run) {
  const cluster::Cluster on = cluster_of(run);
  StepPrograms programs = step_programs(config::parse(keys_of(run), "run.toml"), machine_on(on, run.gpus));
  const auto memory = framework_memory(programs, on);
  EXPECT_TRUE(memory);
  const auto p = predict_step(std::move(programs), on);
  double fullest = 0.0;
  for (const FrameworkMemory& stage : p.framework_memory) fullest = std::max(fullest, stage.device);
  EXPECT_EQ(fullest, memory->device);
  // Nodes take their power between steps too.
  const double hosts = on.nodes * on.node.host_power.value * p.step.seconds();
  EXPECT_NEAR(p.energy->hosts.value, hosts, 1e-9 * hosts);
  return {p.step.seconds(), memory->device, memory->allocator, p.spread()};
}

TEST(Framework, ARowAndTheSameConfigurationComeToOneStep) {
  const auto compare = [&](const char* what, const plan::Run& run) {
    const Figures row = of_row(run);
    const auto [step, device, allocator, spread] = row;
    const auto [step_by_keys, device_by_keys, allocator_by_keys, spread_by_keys] = of_keys(run);
    EXPECT_NEAR(step_by_keys, step, 1e-9 * step) << what;
    EXPECT_NEAR(device_by_keys, device, 1.0) << what;
    EXPECT_NEAR(allocator_by_keys, allocator, 1.0) << what;
    EXPECT_NEAR(spread_by_keys, spread, 1e-9) << what;
    return row;
  };
  const Figures base = compare("base", stated_run());
  for (const auto& [what, change] : kRuns) {
    plan::Run run = stated_run();
    change(run);
    EXPECT_NE(compare(what, run), base) << what << " changes nothing";
  }
}

config::Config config_with(const std::string& more, const Change& change = {}) {
  plan::Run run = stated_run();
  if (change) change(run);
  return config::parse(keys_of(run) + more, "run.toml");
}

std::string error_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void set(config::Config& c, const std::string& assignment) {
  const config::Assignment a = config::parse_assignment(assignment);
  config::assign(c, a.key, a.value, {config::Origin::Kind::kSet, ""});
}

StepPrograms programs_with(const std::vector<std::string>& sets, const Change& change = {}) {
  config::Config c = config_with("", change);
  for (const std::string& assignment : sets) set(c, assignment);
  return step_programs(c, machine_on(cluster_of(stated_run()), 32));
}

double allocator_of(const StepPrograms& programs) {
  return framework_memory(programs, cluster_of(stated_run()))->allocator;
}

// Autograd keeps the results of both norms, and 5 bytes for each score; context ranks have the scores of their own
// tokens with the keys of the whole sequence.
TEST(Framework, ScoresMeetTheKeysOfAllContextRanks) {
  const auto context = [](plan::Run& r) { r.tp = r.pp = 1, r.cp = 2, r.dp = 16, r.flash_attention = false; };
  const double more = allocator_of(programs_with({}, context)) -
                      allocator_of(programs_with({"framework.saved_activations=molen"}, context));
  const double tokens = 2.0 * 512.0;
  EXPECT_DOUBLE_EQ(more, 4.0 * (4.0 * tokens * 1024.0 + 5.0 * 16.0 * tokens * 1024.0));
}

// A layer does not keep the results of parts that it computes again; one layer at a time has them then.
TEST(Framework, PartsThatAreComputedAgainAreNotKept) {
  const auto gated = [](plan::Run& r) {
    r.tp = r.pp = 1, r.dp = 32, r.flash_attention = false;
    r.mlp = "swiglu", r.ffn = 2816, r.tied = false;
  };
  const double tokens = 2.0 * 1024.0, norm = 2.0 * tokens * 1024.0, activation = 2.0 * tokens * 2816.0,
               scores = 5.0 * 16.0 * tokens * 1024.0, all = 2.0 * norm + activation + scores;
  const std::pair<const char*, double> more[] = {
      {"\"none\"", 4.0 * all},
      {"[\"norm_up\"]", 4.0 * (all - norm) + norm},
      {"[\"norm_qkv\", \"activation\"]", 4.0 * (norm + scores) + norm + activation},
      {"[\"attention\"]", 4.0 * (all - scores) + scores},
      {"[\"norm_qkv\", \"attention\", \"out_projection\", \"norm_up\", \"activation\"]", all},
      {"\"full\"", all},
      {"\"full/2\"", 2.0 * all}};
  for (const auto& [recompute, bytes] : more) {
    const std::string key = fmt::format("parallel.recompute={}", recompute);
    EXPECT_DOUBLE_EQ(allocator_of(programs_with({key}, gated)) -
                         allocator_of(programs_with({key, "framework.saved_activations=molen"}, gated)),
                     bytes)
        << recompute;
  }
}

// The fullest stage of a pipeline may be any that has more layers than those before it.
TEST(Framework, AStageWithMoreLayersThanTheFirstOnesIsTheFullest) {
  const cluster::Cluster on = cluster_of(stated_run());
  StepPrograms programs = programs_with({"parallel.stage_layers=[1, 1, 21, 1]"},
                                        [](plan::Run& r) { r.layers = 24, r.tp = 1, r.pp = 4, r.dp = 8; });
  const double fullest = framework_memory(programs, on)->device;
  const auto stages = predict_step(std::move(programs), on).framework_memory;
  EXPECT_EQ(fullest, stages.at(2).device);
  EXPECT_GT(stages.at(2).device, std::max(stages.at(0).device, stages.at(1).device));
}

// In a framework no receive queues behind a send.
TEST(Framework, ReceivesHaveAStreamBesideThatOfSends) {
  int receives = 0, sends = 0;
  for (const program::Program& stage : programs_with({}).stages)
    for (const program::Body& body : stage.bodies)
      for (const program::Step& step : body.steps) {
        const bool receive = std::holds_alternative<program::Receive>(step.op);
        if (!receive && !std::holds_alternative<program::Send>(step.op)) continue;
        ++(receive ? receives : sends);
        EXPECT_EQ(step.stream == program::Stream::kEpComm, receive);
      }
  EXPECT_GT(receives, 0);
  EXPECT_GT(sends, 0);
}

TEST(Framework, WhateverRunsMolenRefusesEachKeyThatIsSet) {
  Machine here;
  here.ranks = here.local_ranks = 32, here.cuda = true;
  config::Config c = config_with("saved_activations = \"molen\"\n", [](plan::Run& r) {
    r.grad_dtype = "bf16", r.precision = "fp8", r.compiled = true, r.overlap = {"dp"};
  });
  const auto arch = resolve_architecture(c);
  const std::string runs = error_of([&] { resolve_setting(c, arch, here); });
  const sim::Calibration none{"host", "cpu", "2026-01-01T00:00:00Z", "", {}};
  const std::string measured = error_of([&] { (void)predict_step(c, here, OnCalibration{none, "cal.json"}); });
  EXPECT_NE(measured.find("cal.json has measured molen itself, which"), std::string::npos) << measured;
  EXPECT_NE(
      runs.find("framework.compiled: this command is for molen itself, which fuses element-wise ops by kernels of "
                "its own; remove the key, or predict the framework with `molen simulate --cluster NAME`"),
      std::string::npos)
      << runs;
  for (const config::Field& field : config::fields()) {
    if (!field.key.starts_with("framework.")) continue;
    EXPECT_NE(runs.find(field.key + ": "), std::string::npos) << field.key << " in " << runs;
    EXPECT_NE(measured.find(field.key + ": "), std::string::npos) << field.key << " in " << measured;
  }
  config::Config plain = config::parse("[model]\npreset = \"llama-tiny\"\n[framework]\nkind = \"molen\"\n", "run.toml");
  EXPECT_EQ(error_of([&] { resolve_setting(plain, resolve_architecture(plain), {}); }), "");
}

// Keys whose costs or memory are known of no framework are refused by their name, and not left out of the prediction.
TEST(Framework, KeysBesideItThatNoFrameworkIsKnownForAreRefused) {
  const auto says = [&](const std::string& assignment, const Change& change = {}) {
    return error_of([&] { programs_with({assignment}, change); });
  };
  EXPECT_EQ(says("framework.compiled=true"), "");
  for (const char* set :
       {"precision.compute=fp32", "parallel.tensor_chunks=2", "parallel.schedule=gpipe", "parallel.recompute=20GiB",
        "parallel.offload=[\"optimizer\"]", "data.document_mask=true", "framework.overlap=[\"tp\"]"}) {
    const std::string said =
        says(set, [&](plan::Run& r) { r.sequence_parallel = std::string(set).find("chunks") != std::string::npos; });
    const std::string key(set, std::string(set).find('='));
    EXPECT_NE(said.find(key + ": with framework.kind = \"pytorch\""), std::string::npos) << set << ": " << said;
  }
  const auto narrow = [](plan::Run& r) { r.grad_dtype = "bf16"; };
  EXPECT_NE(says("precision.reduce=fp32", narrow).find("precision.reduce: with"), std::string::npos);
  EXPECT_EQ(says("precision.reduce=bf16", narrow), "");
  const auto hybrid = [](plan::Run& r) { sharded(r, 3), r.shard_group = 8; };
  EXPECT_NE(says("parallel.zero=1", hybrid).find("parallel.zero: with"), std::string::npos);
  EXPECT_EQ(says("parallel.zero=3", hybrid), "");
  config::Config sparse = config::parse("[model]\npreset = \"mixtral-8x7b\"\n[framework]\nkind = \"pytorch\"\n", "");
  const std::string said = error_of([&] { step_programs(sparse, machine_on(cluster_of(stated_run()), 32)); });
  EXPECT_NE(said.find("model.preset: with framework.kind = \"pytorch\""), std::string::npos) << said;
}

// A device has kernels in tiles for some heads alone; with others, scores are written out where the key says so.
TEST(Framework, AttentionInTilesIsRefusedForHeadsThatDevicesHaveNoSuchKernelsFor) {
  for (const char* other : {"model.head_dim=264", "model.head_dim=20", "model.position=alibi"}) {
    const std::string said = error_of([&] { programs_with({other}); });
    EXPECT_NE(said.find("math.flash_attention: with framework.kind = \"pytorch\""), std::string::npos) << other << said;
    EXPECT_NE(said.find("set math.flash_attention = false"), std::string::npos) << said;
    const auto written = [](plan::Run& r) { r.flash_attention = false; };
    EXPECT_EQ(error_of([&] { programs_with({other}, written); }), "") << other;
  }
  EXPECT_EQ(error_of([&] { programs_with({"model.head_dim=256"}); }), "");
}

TEST(Framework, OverlapOfAnAxisWithOneRankIsRefused) {
  const std::pair<const char*, Change> alone[] = {{"tp", [](plan::Run& r) { r.tp = 1, r.dp = 16; }},
                                                  {"pp", [](plan::Run& r) { r.pp = 1, r.dp = 16; }},
                                                  {"dp", [](plan::Run& r) { r.tp = 8, r.pp = 4, r.dp = 1; }}};
  for (const auto& [axis, change] : alone) {
    const std::string key = fmt::format("framework.overlap=[\"{}\"]", axis);
    const std::string said = error_of([&] { programs_with({key}, change); });
    EXPECT_NE(said.find(fmt::format("\"{}\" has no effect", axis)), std::string::npos) << axis << said;
  }
}

TEST(Framework, ALayoutThatExceedsADeviceIsAnOutcome) {
  const cluster::Cluster on = cluster_of(stated_run());
  const Outcome fits = predict(config_with(""), on, machine_on(on, 32));
  ASSERT_EQ(fits.kind, Outcome::Kind::kStep) << fits.why;
  EXPECT_EQ(fits.figures.step_s, std::get<0>(of_keys(stated_run())));
  EXPECT_EQ(static_cast<double>(fits.memory->value), std::floor(std::get<1>(of_keys(stated_run()))));
  const Outcome large = predict(
      config_with("", [](plan::Run& r) { r.layers = 24, r.hidden = 16384, r.ffn = 65536, r.heads = r.kv_heads = 128; }),
      on, machine_on(on, 32));
  EXPECT_EQ(large.kind, Outcome::Kind::kOutOfMemory);
  EXPECT_NE(large.why.find("of a device of"), std::string::npos) << large.why;
}

}  // namespace
}  // namespace molen::plan
