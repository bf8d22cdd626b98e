#include "plan/published_runs.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "plan/test_runs.h"

namespace molen::plan {
namespace {

// GPT of 5.9 B parameters on 64 GPUs, as no source has it.
plan::Run gpt_run() {
  plan::Run run;
  run.id = "x";
  run.layers = 32, run.hidden = 4096, run.ffn = 16384, run.heads = 32, run.kv_heads = 32, run.vocabulary = 51200;
  run.sequence = 2048, run.mlp = "gelu", run.tied = true;
  run.gpu = "A100-SXM-80GB", run.gpus = 64;
  run.tp = 4, run.pp = 2, run.dp = 8, run.chunks = 1;
  run.schedule = "1f1b", run.zero = 1, run.micro_batch = 2, run.global_batch = 128, run.recompute = "full";
  run.precision = "bf16", run.grad_dtype = "fp32";
  return run;
}

RunPrediction predicted(const std::function<void(plan::Run&)>& change = {}) {
  plan::Run run = gpt_run();
  if (change) change(run);
  auto prediction = predict(run, sim::Factors::shipped());
  EXPECT_TRUE(prediction.ok()) << prediction.reason();
  return prediction.ok() ? prediction.value() : RunPrediction{};
}

TEST(PublishedRuns, EachColumnHasItsEffect) {
  const RunPrediction base = predicted();
  EXPECT_GT(base.step_s, base.model_flops / (64 * 312e12));
  EXPECT_TRUE(base.fits);
  EXPECT_GT(base.memory_bytes, base.allocator_bytes);
  EXPECT_EQ(base.memory_spread, sim::Factors::shipped().memory_spread());
  EXPECT_NEAR(base.device_bytes, 80 * 1.0737e9, 2e9);
  const auto none = predicted([](plan::Run& r) { r.recompute = "none"; });
  EXPECT_LT(none.step_s, 0.9 * base.step_s);
  EXPECT_GT(none.allocator_bytes, 1.2 * base.allocator_bytes);
  const auto unfused = predicted([](plan::Run& r) { r.flash_attention = false; });
  EXPECT_GT(unfused.step_s, 1.02 * base.step_s);
  EXPECT_GT(unfused.kinds_s.at("forward attention"), 1.5 * base.kinds_s.at("forward attention"));
  EXPECT_NEAR(unfused.kinds_s.at("forward down"), base.kinds_s.at("forward down"), 1e-9);
  const auto attention =
      predicted([](plan::Run& r) { r.recompute = "selective_attention", r.flash_attention = false; });
  EXPECT_LT(attention.step_s, unfused.step_s);
  EXPECT_LT(attention.allocator_bytes,
            predicted([](plan::Run& r) { r.recompute = "none", r.flash_attention = false; }).allocator_bytes);
  const auto hides = predicted([](plan::Run& r) { r.overlap = {"dp"}; });
  EXPECT_LT(hides.step_s, base.step_s);
  EXPECT_GT(base.exposed_s.at("dp"), 2.0 * hides.exposed_s.at("dp"));

  EXPECT_LT(predicted([](plan::Run& r) { r.overlap = {"tp"}, r.sequence_parallel = true; }).exposed_s.at("tp"),
            predicted([](plan::Run& r) { r.sequence_parallel = true; }).exposed_s.at("tp"));
  EXPECT_EQ(predicted([](plan::Run& r) { r.overlap = {"tp", "dp"}; }).chosen.at("overlap"), "dp");
  const auto slow = [](plan::Run& r) { r.network_bytes_per_s = 1e9; };
  EXPECT_LT(predicted([&](plan::Run& r) { slow(r), r.overlap = {"pp"}; }).step_s, 0.99 * predicted(slow).step_s);
  // Three forwards of 2 W + A / 2 + H for each token (docs/formats/runs.md).
  EXPECT_NEAR(base.model_flops,
              128.0 * 2048 * 3 *
                  (2 * 32.0 * (4 * 4096.0 * 4096 + 2 * 4096.0 * 16384) + 2 * 32.0 * 2048 * 4096 + 2 * 4096.0 * 51200),
              1e-6 * base.model_flops);
  EXPECT_LT(predicted([](plan::Run& r) { r.compiled = true; }).step_s, base.step_s);
  EXPECT_LT(predicted([](plan::Run& r) { r.grad_dtype = "bf16"; }).allocator_bytes, base.allocator_bytes);
  EXPECT_LT(predicted([](plan::Run& r) { r.sequence_parallel = true; }).allocator_bytes, base.allocator_bytes);
  EXPECT_GT(predicted([](plan::Run& r) { r.network_bytes_per_s = 1e9; }).step_s, 1.05 * base.step_s);
  EXPECT_GT(predicted([](plan::Run& r) { r.peak_16bit = 150e12; }).step_s, 1.4 * base.step_s);
  // More micro-batches in the same stages have a smaller share of bubble; interleaving has less of it.
  const auto long_step = predicted([](plan::Run& r) { r.global_batch = 1024; });
  EXPECT_LT(long_step.bubble_s / long_step.step_s, 0.5 * base.bubble_s / base.step_s);
  EXPECT_LT(predicted([](plan::Run& r) { r.chunks = 4, r.schedule = "interleaved_1f1b"; }).bubble_s, base.bubble_s);
  // A larger vocabulary takes the last stage longer, unless the output counts as a layer.
  const auto wide = [](plan::Run& r) { r.vocabulary = 256000; };
  EXPECT_GT(predicted(wide).step_s, 1.08 * base.step_s);
}

// Without a compiler, a layer that is computed again is computed as a whole, with the last product of its forward.
TEST(PublishedRuns, ALayerIsComputedAgainAsAWhole) {
  const auto down = [](const char* recompute, bool compiled) {
    return predicted([=](plan::Run& r) { r.recompute = recompute, r.compiled = compiled; }).kinds_s.at("backward down");
  };
  const double forward = predicted().kinds_s.at("forward down"), plain = down("none", false);
  EXPECT_NEAR(down("full", false), plain + forward, 0.1 * forward);
  EXPECT_NEAR(down("selective_layer", false), plain + 0.5 * forward, 0.1 * forward);
  EXPECT_NEAR(down("full", true), down("none", true), 0.1 * forward);
}

TEST(PublishedRuns, ShardedParametersOfAPipelineAreGatheredOnceAStep) {
  plan::Run run = gpt_run();
  run.zero = 3;
  EXPECT_EQ(setting_of(run, architecture_of(run)).zero, 1);
  run.pp = 1, run.dp = 16;
  EXPECT_EQ(setting_of(run, architecture_of(run)).zero, 3);
  // One rank has nothing to shard over.
  run.tp *= 16, run.dp = 1;
  EXPECT_EQ(setting_of(run, architecture_of(run)).zero, 0);
  run.zero = 2;
  EXPECT_EQ(setting_of(run, architecture_of(run)).zero, 0);
}

// Whoever waits for sharded parameters computes nothing beside any gather or reduction, and gathers matrix by matrix.
// On more ranks, each collective of a matrix takes longer to start, and the layers are as many.
TEST(PublishedRuns, ShardedParametersThatAreNotGatheredAheadAreWaitedFor) {
  const auto sharded = [](int ranks, bool ahead) {
    return predicted([=](plan::Run& r) {
      r.tp = r.pp = 1, r.dp = r.gpus = ranks, r.zero = 3, r.micro_batch = 1, r.global_batch = ranks;
      if (ahead) r.overlap = {"dp"};
    });
  };
  const auto moving = [](const RunPrediction& p) {
    return p.kinds_s.at("all_gather") + p.kinds_s.at("reduce_scatter");
  };
  const RunPrediction ahead = sharded(64, true), waits = sharded(64, false), more_waits = sharded(512, false);
  EXPECT_NEAR(waits.exposed_s.at("dp"), moving(waits), 0.01 * moving(waits));
  EXPECT_LT(ahead.exposed_s.at("dp"), 0.2 * moving(ahead));
  EXPECT_GT(waits.step_s, ahead.step_s + 0.7 * moving(waits)) << "compute loses up to a share beside communication";
  // 32 layers of four matrices, of which the other three start two gathers and a scatter more. Each passes 448 ranks
  // more, an eighth of them over the network.
  const sim::Factors& f = sim::Factors::shipped();
  const double hops = f.of("latency") * (448.0 * 7 / 8 * 1e-5 + 448.0 / 8 * 2e-5);
  EXPECT_GT(moving(more_waits) - moving(waits), 32 * 3 * 3 * hops);
  EXPECT_LT(moving(sharded(512, true)) - moving(ahead), 0.5 * (moving(more_waits) - moving(waits)));
}

TEST(PublishedRuns, TheLossHasItsMemory) {
  const auto with = [](std::int64_t vocabulary, bool near_full) {
    return predicted(
        [=](plan::Run& r) { r.vocabulary = vocabulary, r.pp = 1, r.dp = 16, r.micro_batch = near_full ? 8 : 2; });
  };
  // 14 bytes for each of 4,096 tokens and a quarter of the vocabulary, and 20 for each parameter of the tied embedding
  // but for the optimizer's shards.
  const double more = with(512 * 400, false).allocator_bytes - with(512 * 200, false).allocator_bytes;
  const double rows = 512.0 * 200.0 / 4.0, parameters = rows * 4096.0;
  EXPECT_GT(more, 14.0 * 4096.0 * rows + 6.0 * parameters);
  EXPECT_LT(more, 14.0 * 4096.0 * rows + 18.0 * parameters);
  // A run that fits with a fused loss uses no more than there is.
  const auto full = with(512 * 480, true);
  EXPECT_TRUE(full.fits);
  EXPECT_LE(full.memory_bytes, 8.5e10);
}

// The driver also shows a quarter more than the allocator's blocks, 1 GiB of context, and 0.35 GiB for each of six
// communicators: of all ranks, of tensor and of data-parallel ranks, and the three of a pipeline.
TEST(PublishedRuns, LibrariesHaveTheirMemory) {
  const RunPrediction p = predicted();
  ASSERT_LT(p.memory_bytes, 8e10) << "the run must not reach the capacity";
  // Sums of doubles of some 1e11 bytes are exact to far less than a kilobyte.
  EXPECT_NEAR(p.memory_bytes - 1.25 * p.allocator_bytes, (1.0 + 6 * 0.35) * 1024 * 1024 * 1024, 1024.0);
}

TEST(PublishedRuns, Fp8IsFasterOnDevicesThatHaveIt) {
  const auto h100 = [](plan::Run& r) { r.gpu = "H100-SXM-80GB"; };
  const auto fp8 = [](plan::Run& r) { r.gpu = "H100-SXM-80GB", r.precision = "fp8"; };
  EXPECT_LT(predicted(fp8).step_s, 0.9 * predicted(h100).step_s);
  plan::Run run = gpt_run();
  run.precision = "fp8";
  EXPECT_NE(predict(run, sim::Factors::shipped()).reason().find("fp8"), std::string::npos);
}

TEST(PublishedRuns, BlanksAreChosenAndNamed) {
  const auto open = predicted([](plan::Run& r) { r.recompute.reset(), r.zero.reset(), r.micro_batch.reset(); });
  EXPECT_TRUE(open.fits);
  EXPECT_EQ(open.chosen.at("recompute"), "none");
  EXPECT_EQ(open.chosen.at("zero_stage"), "0");
  for (const std::int64_t size : {1, 2, 4})
    EXPECT_LE(open.step_s,
              predicted([&](plan::Run& r) { r.recompute = "none", r.zero = 0, r.micro_batch = size; }).step_s);
  // Blank chunks are those of the fastest step.
  const auto chunks = predicted([](plan::Run& r) { r.chunks.reset(), r.schedule = ""; });
  EXPECT_EQ(chunks.chosen.at("schedule"), "interleaved_1f1b");
  for (const int n : {1, 2, 4, 8, 16})
    EXPECT_LE(chunks.step_s, predicted([&](plan::Run& r) { r.chunks = n; }).step_s) << n;
  // Where the ends count as layers, no chunk is an end alone.
  const auto ends =
      predicted([](plan::Run& r) { r.chunks.reset(), r.schedule = "", r.ends_count_as_layers = true, r.layers = 14; });
  EXPECT_LT(std::stoi(ends.chosen.at("vpp")), 8);
  // Nine micro-batches of two stages do not interleave.
  const auto odd = predicted([](plan::Run& r) { r.chunks.reset(), r.schedule = "", r.global_batch = 144; });
  EXPECT_EQ(odd.chosen.at("vpp"), "1");
  EXPECT_EQ(odd.chosen.at("schedule"), "1f1b");
  const auto told =
      predicted([](plan::Run& r) { r.chunks.reset(), r.schedule = "interleaved_1f1b", r.global_batch = 144; });
  EXPECT_EQ(told.chosen.at("vpp"), "2");
  EXPECT_FALSE(told.chosen.contains("schedule"));
  // A device with a power limit stands for its type, which is said.
  EXPECT_EQ(predicted([](plan::Run& r) { r.gpu = "V100-SXM-32GB"; }).chosen.at("gpu"), "V100-SXM-32GB-450W");
}

TEST(PublishedRuns, ABlankLayoutIsThatOfTheFastestStep) {
  const auto blank = [](plan::Run& r) {
    r.layers = 8, r.gpus = 16, r.global_batch = 32;
    r.tp = r.pp = r.dp = 1, r.has_layout = false, r.sequence_parallel = true;
    r.micro_batch.reset(), r.chunks.reset(), r.schedule = "", r.recompute.reset();
  };
  const RunPrediction found = predicted(blank);
  EXPECT_TRUE(found.fits);
  const auto size = [&](const char* column) { return std::stoi(found.chosen.at(column)); };
  EXPECT_EQ(size("tp") * size("pp") * size("dp"), 16);
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 4}) {
      if (tp * pp > 16) continue;
      const auto given = predicted([&](plan::Run& r) {
        blank(r);
        r.has_layout = true, r.tp = tp, r.pp = pp, r.dp = 16 / (tp * pp), r.sequence_parallel = tp > 1;
      });
      // Short steps stand for whole ones while layouts are compared.
      if (given.fits) {
        EXPECT_LE(found.step_s, 1.03 * given.step_s) << tp << " x " << pp;
      }
    }
}

// Tensor ranks have whole columns of the MLP: an odd width has no two of them.
TEST(PublishedRuns, ABlankLayoutDividesTheWidthOfTheMlp) {
  const RunPrediction found = predicted([](plan::Run& r) {
    r.layers = 8, r.ffn = 16383, r.gpus = 16, r.global_batch = 32;
    r.tp = r.pp = r.dp = 1, r.has_layout = false;
  });
  EXPECT_EQ(found.chosen.at("tp"), "1");
}

TEST(PublishedRuns, ARowWithItsAssumedValuesHasTheSamePrediction) {
  CellsByName row = bare_row();
  row["gpu"] = "A100-SXM-80GB", row["layers"] = "8";
  const auto predicted_row = [&] {
    const plan::Run run = read_row(row);
    return to_json(run, predict(run, sim::Factors::shipped()).value());
  };
  const Json blank = predicted_row();
  for (const char* column : {"tp", "pp", "dp", "mbs", "vpp", "schedule", "recompute", "zero_stage"})
    EXPECT_TRUE(blank.at("assumed").contains(column)) << column;
  for (const auto& [column, value] : blank.at("assumed").items()) row[column] = value.get<std::string>();
  const Json filled = predicted_row();
  EXPECT_TRUE(filled.at("assumed").empty()) << filled.at("assumed").dump();
  for (const char* figure : {"step_s", "memory_bytes_per_gpu", "fits"})
    EXPECT_EQ(filled.at(figure), blank.at(figure)) << figure;
}

TEST(PublishedRuns, SeveralSetsOfFactorsAreSeveralPredictions) {
  const std::vector<sim::Factors> sets{sim::Factors::shipped(),
                                       sim::Factors::parse(R"({"gemm": 0.4, "memory": 3})", "t")};
  for (const bool open : {false, true}) {
    plan::Run run = gpt_run();
    if (open) run.recompute.reset(), run.micro_batch.reset();
    const auto times = predict_times(run, sets);
    ASSERT_TRUE(times.ok()) << times.reason();
    EXPECT_DOUBLE_EQ(times.value()[0], predict(run, sets[0]).value().step_s);
    EXPECT_GT(times.value()[1], 1.3 * times.value()[0]);
    if (!open) {
      EXPECT_DOUBLE_EQ(times.value()[1], predict(run, sets[1]).value().step_s);
    }
  }
}

TEST(PublishedRuns, FailuresNameTheColumn) {
  plan::Run run = gpt_run();
  run.gpu = "A100-SXM-80G";
  EXPECT_EQ(predict(run, sim::Factors::shipped())
                .reason()
                .find("gpu: unknown type 'A100-SXM-80G'; did you mean "
                      "'A100-SXM-80GB'"),
            0u);
  run = gpt_run();
  run.ends_count_as_layers = true, run.layers = 31;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("pp_split: "), 0u);
  run = gpt_run();
  run.gpu = "A100";
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("gpu: "), 0u);
  run = gpt_run();
  run.gpus_per_node = 16;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("gpus_per_node: 16"), 0u);
  run = gpt_run();
  run.cp = 4, run.dp = 2, run.shard_group = 6, run.zero = 3;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("shard_group: 6"), 0u);
  run = gpt_run();
  run.micro_batch = 10'000'000, run.sequence = 1 << 24, run.global_batch = 80'000'000;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("mbs: "), 0u);
  run = gpt_run();
  run.global_batch = 16'000'000;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("gbs: "), 0u);
  run.micro_batch.reset();  // no micro-batch makes the step short enough
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("gbs: 16000000 sequences are 2000000 micro-batches"),
            0u);
  run.global_batch = 12;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason(), "gbs: 12 sequences do not divide over dp = 8");
  run = gpt_run();
  run.has_layout = false, run.gpus = 7;  // 128 sequences do not divide, nor do 32 layers
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason().find("tp: no layout of 7 GPUs"), 0u);
  // Seven replicas share 4,711 sequences; one has too many micro-batches to simulate.
  run = gpt_run();
  run.layers = 112, run.hidden = 960, run.heads = run.kv_heads = 15, run.ffn = 3840, run.sequence = 1024;
  run.has_layout = false, run.gpus = 56, run.tp = run.pp = run.dp = 1, run.global_batch = 4711;
  run.micro_batch.reset();
  const auto found = predict(run, sim::Factors::shipped());
  ASSERT_TRUE(found.ok()) << found.reason();
  EXPECT_EQ(found.value().chosen.at("dp"), "7");
  run = gpt_run();
  run.has_layout = false, run.layers = 10000;
  EXPECT_EQ(predict(run, sim::Factors::shipped()).reason(),
            "layers: 10000 are too many to choose a layout; give tp, pp and dp");
}

TEST(PublishedRuns, TheMachineIsThatOfTheRow) {
  plan::Run run = gpt_run();
  run.gpus_per_node = 4, run.network_bytes_per_s = 3e9;
  const cluster::Cluster c = cluster_of(run);
  EXPECT_EQ(c.node.devices, 4);
  EXPECT_EQ(c.devices(), 64);
  EXPECT_EQ(c.tiers.back().devices, 64);
  EXPECT_EQ(c.tiers.back().bandwidth.value, 3e9);
  EXPECT_EQ(c.tier_of(4).devices, 4);
}

}  // namespace
}  // namespace molen::plan
