#include "sim/described_costs.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "program/ir/stages.h"
#include "sim/described_energy.h"
#include "sim/simulate.h"
#include "sim/test_cluster.h"

namespace molen::sim {
namespace {

using program::parts::MatrixProduct;

// Sequences of 64 have 64 * 65 / 2 scores below the diagonal, which the FLOPs of a part round to half of 64 * 64.
TEST(DescribedCosts, WrittenOutAttentionMovesItsScores) {
  program::Setting s = small_setting();
  const double fused = seconds_of(costs_of(), program_of_setting(s), arch::Part::kAttention);
  s.other_kernels.emplace(arch::Part::kAttention, arch::Kernels("unfused"));
  const program::Program p = program_of_setting(s);
  const double scores = static_cast<double>(p.arch.heads) * 64 * 64 / 2, width = static_cast<double>(p.arch.head_dim);
  // Two products of fp32 and 48 bytes a score, in a backward five products and 80 bytes, and a launch.
  const double forward = 2 * 2 * scores * width / 1e13 + 48 * scores / 1e12 + 1e-6,
               backward = 5 * 2 * scores * width / 1e13 + 80 * scores / 1e12 + 1e-6;
  int seen = 0;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) {
      const auto* part = std::get_if<program::Compute>(&step.op);
      if (!part || part->part != arch::Part::kAttention) continue;
      ++seen;
      const double expected = arch::is_backward(part->pass) ? backward : forward;
      EXPECT_NEAR(costs_of().seconds(p, step), expected, 1e-9 * expected);
    }
  EXPECT_GT(seen, 1);
  EXPECT_GT(seconds_of(costs_of(), p, arch::Part::kAttention), fused);
}

TEST(DescribedCosts, SayWhichDeviceHasNoFp8) {
  cluster::Cluster without = round_cluster();
  without.device.peak_fp8.value = 0.0;
  try {
    const DescribedCosts costs(without, neutral(), {.fp8 = true});
    ADD_FAILURE() << "no rate in fp8";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "round: round device does not compute in fp8");
  }
}

// Of 200 GB/s each of two ranks has 100 GB/s; a copy has at most the 20 GB/s of its link. A launch takes 1 us.
TEST(DescribedCosts, OffloadedStateMovesAtTheRatesOfTheHost) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 3;
  s.offload = {.optimizer = true, .gradients = true, .parameters = true, .activations = true};
  const program::Program p = program_of_setting(s);
  int copies = 0, updates = 0;
  cluster::Cluster slow = round_cluster();
  slow.node.host_bandwidth.value = 2e10;  // 10 GB/s for a rank, which a copy cannot exceed either
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) {
      const bool copy = program::is_copy(step.op);
      if (!copy && step.stream != program::Stream::kHost) continue;
      copy ? ++copies : ++updates;
      const auto bytes = static_cast<double>(step.moved.value);
      const double rate = copy ? 2e10 : 1e11;
      EXPECT_NEAR(costs_of().seconds(p, step), 1e-6 + bytes / rate, 1e-12);
      EXPECT_NEAR(DescribedCosts(slow, neutral()).seconds(p, step), 1e-6 + bytes / 1e10, 1e-12);
    }
  EXPECT_GT(copies, 0);
  EXPECT_GT(updates, 0);
  // Eight ranks fill two nodes, where each of four has 50 GB/s.
  s.mesh[mesh::Axis::kDpShard] = 8;
  const program::Program more = program_of_setting(s);
  for (const program::Body& body : more.bodies)
    for (const program::Step& step : body.steps)
      if (step.stream == program::Stream::kHost) {
        EXPECT_NEAR(costs_of().seconds(more, step), 1e-6 + static_cast<double>(step.moved.value) / 5e10, 1e-12);
      }
}

TEST(Factors, AListOfSetsHasOne) {
  const fs::path file = fs::path(::testing::TempDir()) / fmt::format("molen_factors_{}.json", ::getpid());
  write_file_atomic(file, "[{\"gemm\": 0.5}, {\"gemm\": 0.25}]");
  const auto sets = Factors::read_sets(file);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].of("gemm"), 0.5);
  EXPECT_EQ(sets[1].of("gemm"), 0.25);
  write_file_atomic(file, "[]");
  EXPECT_THROW(Factors::read_sets(file), UsageError);
  fs::remove(file);
}

TEST(DescribedCosts, AWholeProductTakesItsFlopsOverThePeak) {
  const MatrixProduct p{8192, 8192, 8192};
  EXPECT_NEAR(costs_of().product_seconds(p, 2, true), 1e-6 + p.flops() / 1e14, 1e-9);
  EXPECT_NEAR(costs_of().product_seconds(p, 4, true), 1e-6 + p.flops() / 1e13, 1e-9);
  EXPECT_NEAR(costs_of({.fp8 = true}).product_seconds(p, 2, true), 1e-6 + p.flops() / 1e14,
              1e-9);  // twice the rate, halved
  EXPECT_THROW(costs_of().product_seconds(p, 8, true), UsageError);
}

TEST(DescribedCosts, TilesFillTheDeviceInWholeWaves) {
  cluster::Cluster c = round_cluster();
  c.device.multiprocessors = 100;
  const DescribedCosts costs(c, neutral());
  // 100 tiles of 256 x 128 fill one wave. One column of tiles more needs a second wave of the same tiles, or one of
  // smaller ones.
  const double full = costs.product_seconds({2560, 1280, 4096}, 2, true) - 1e-6,
               more = costs.product_seconds({2560, 1281, 4096}, 2, true) - 1e-6;
  EXPECT_NEAR(full, 2.0 * 2560 * 1280 * 4096 / 1e14, 1e-12);
  EXPECT_GT(more, 1.05 * full);
  EXPECT_LE(more, 2.0 * full * 1281 / 1280);
}

TEST(DescribedCosts, SizesThatAreNoMultipleOf8AreSlower) {
  const DescribedCosts costs(round_cluster(),
                             Factors::parse(R"({"ragged": 0.125, "gemm": 1, "gemm_terms": 1e-9})", "t"));
  const double launch = costs.product_seconds({1, 1, 1}, 2, true),
               whole = costs.product_seconds({8192, 8192, 8192}, 2, true) - launch;
  for (const MatrixProduct ragged : {MatrixProduct{8192, 8192, 8192 - 4}, MatrixProduct{8192, 8192 - 4, 8192}})
    EXPECT_NEAR(costs.product_seconds(ragged, 2, true) - launch, 8.0 * whole, 0.01 * 8.0 * whole);
  EXPECT_NEAR(costs.product_seconds({8192 - 4, 8192, 8192}, 2, true) - launch, whole,
              0.01 * whole);  // rows are no matter
}

TEST(DescribedCosts, ThinProductsTakeTheirBytesOverTheBandwidth) {
  const MatrixProduct p{1, 4096, 4096};
  EXPECT_NEAR(costs_of().product_seconds(p, 2, true), 1e-6 + 2.0 * (4096 + 4096.0 * 4096 + 4096) / 1e12, 1e-8);
  const MatrixProduct outer{4096, 4096, 1};  // nearly all of its bytes are those of the result
  EXPECT_NEAR(costs_of().product_seconds(outer, 2, true), 1e-6 + 2.0 * (4096 + 4096 + 4096.0 * 4096) / 1e12, 1e-8);
}

RC_GTEST_PROP(DescribedCosts, ProductsNeverBeatThePeakAndGrowWithTheirTerms, ()) {
  cluster::Cluster c = round_cluster();
  c.device.multiprocessors = *rc::gen::inRange(1, 300);
  const DescribedCosts costs(c, neutral());
  const MatrixProduct p{*rc::gen::inRange(1, 20000), *rc::gen::inRange(1, 20000), *rc::gen::inRange(1, 20000)};
  const MatrixProduct longer{p.rows, p.columns, p.terms + 8};  // as many beyond a multiple of 8
  RC_ASSERT(costs.product_seconds(p, 2, true) >= p.flops() / 1e14);
  RC_ASSERT(costs.product_seconds(longer, 2, true) > costs.product_seconds(p, 2, true));
}

TEST(DescribedCosts, CollectivesTakeARingOverTheSlowestLinks) {
  const DescribedCosts costs = costs_of();
  const double bytes = 4e9;
  EXPECT_NEAR(costs.collective_seconds("all_gather", bytes, {4, 4, 1}), 1e-6 + 3e-6 + 0.75 * bytes / 1e11, 1e-9);
  EXPECT_NEAR(costs.collective_seconds("reduce_scatter", bytes, {4, 4, 1}),
              costs.collective_seconds("all_gather", bytes, {4, 4, 1}), 1e-15);
  // Between nodes the four members of a node use all of its links.
  EXPECT_NEAR(costs.collective_seconds("all_gather", bytes, {16, 4, 1}), bytes * 15 / 16 / 4e10, 1e-3 * bytes / 4e10);
  // One member of each node has one device's share of the links.
  EXPECT_NEAR(costs.collective_seconds("all_gather", bytes, {4, 1, 4}), bytes * 3 / 4 / 1e10, 1e-3 * bytes / 1e10);
  // An all-reduce moves twice the bytes; few bytes take a tree.
  EXPECT_NEAR(costs.collective_seconds("all_reduce", bytes, {4, 4, 1}), 1e-6 + 4e-6 + 1.5 * bytes / 1e11, 1e-9);
  EXPECT_LT(costs.collective_seconds("all_reduce", 8.0, {16, 1, 1}), 2.0 * 16 * 1e-5);
}

// Two nodes of four exchange each share once in an all-reduce. All-gathers go around a ring, unless the library of the
// framework has levels for them as well.
TEST(DescribedCosts, TheFastestAlgorithmOfTheLibraryIsTaken) {
  const double bytes = 4e9, by_levels = 0.75 * bytes / 1e11 + 0.25 * bytes * 0.5 / 1e10, by_ring = bytes * 7 / 8 / 4e10;
  const DescribedCosts::Group two{8, 4, 1};
  ASSERT_LT(by_levels, 0.95 * by_ring);
  EXPECT_NEAR(costs_of().collective_seconds("all_reduce", bytes, two), 2.0 * by_levels, 1e-3 * by_levels);
  EXPECT_NEAR(costs_of().collective_seconds("all_gather", bytes, two), by_ring, 1e-3 * by_ring);
  const DescribedCosts levels = costs_of({.other_collectives = {Algorithm::kRing, Algorithm::kHierarchical}}),
                       rings = costs_of({.all_reduces = {Algorithm::kRing}});
  EXPECT_NEAR(levels.collective_seconds("all_gather", bytes, two), by_levels, 1e-3 * by_levels);
  EXPECT_NEAR(rings.collective_seconds("all_reduce", bytes, two), 2.0 * by_ring, 1e-3 * by_ring);
  // Within a node there is one level.
  EXPECT_EQ(levels.collective_seconds("all_gather", bytes, {4, 4, 1}),
            costs_of().collective_seconds("all_gather", bytes, {4, 4, 1}));
}

TEST(DescribedCosts, GroupsFollowTheOrderOfTheAxes) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kTp] = 2, s.mesh[mesh::Axis::kDpShard] = 8, s.zero = 3;
  const DescribedCosts costs = costs_of();
  const program::Program p = program_of_setting(s);
  const auto tp = costs.group_of(p, program::Axis::kTp), dp = costs.group_of(p, program::Axis::kDp);
  EXPECT_EQ(tp.ranks, 2);
  EXPECT_EQ(tp.in_node, 2);
  EXPECT_EQ(tp.distance, 1);
  EXPECT_EQ(dp.ranks, 8);
  EXPECT_EQ(dp.in_node, 2);
  EXPECT_EQ(dp.distance, 2);
}

TEST(DescribedCosts, MessagesTakeTheLinksBetweenTheirStages) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kPp] = 4, s.mesh[mesh::Axis::kTp] = 2;  // two stages of two ranks in a node of four devices
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  const DescribedCosts costs = costs_of();
  for (const program::Program& p : program::build_stages(arch::preset("llama-tiny"), s))
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps)
        if (const auto* send = std::get_if<program::Send>(&step.op)) {
          const bool crosses = program::stage_shown(p) / 2 != send->peer / 2;
          EXPECT_NEAR(costs.seconds(p, step),
                      1e-6 + (crosses ? 1e-5 : 1e-6) + static_cast<double>(step.moved.value) / (crosses ? 1e10 : 1e11),
                      1e-12);
        }
}

TEST(DescribedCosts, TheEndsOfAPipelineAreFarApart) {
  program::Setting s = small_setting();
  auto tied = arch::preset("llama-tiny");
  tied.tied = true;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  for (const int stages : {2, 4, 8}) {
    tied.layers = s.mesh[mesh::Axis::kPp] = stages;
    const auto group = costs_of().group_of(program::build_stages(tied, s).front(), program::Axis::kEmbedding);
    EXPECT_EQ(group.ranks, 2);
    EXPECT_EQ(group.distance, stages - 1);
    EXPECT_EQ(group.in_node, stages <= 4 ? 2 : 1);
  }
}

// Every op of every stage has a cost, and the step takes at least as long as its FLOPs at the peak.
TEST(DescribedCosts, CoverAllOpsOfALayout) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kTp] = 2, s.mesh[mesh::Axis::kPp] = 2, s.mesh[mesh::Axis::kCp] = 2;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 2, s.sequence_parallel = true, s.reduce = DType::kBF16;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  const program::Stages stages(program::build_stages(arch::preset("llama-tiny"), s));
  const auto timelines = simulate(stages, costs_of());
  double flops = 0.0;
  for (const auto& op : stages.ops(1)) flops += op.step->hardware_flops.value;
  EXPECT_GT(step_seconds(timelines), flops / 1e14);
}

TEST(DescribedEnergy, IsPowerTimesTimeOfDevicesAndHosts) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kDpShard] = 8, s.zero = 1;
  const program::Stages stages(program_of_setting(s));
  const auto timelines = simulate(stages, costs_of());
  const double step = step_seconds(timelines);
  const StepEnergy e = energy_of(stages, timelines, round_cluster(), neutral(), 0.1);
  EXPECT_NEAR(e.hosts.value, 2 * 800.0 * step, 1e-9 * e.hosts.value);  // eight ranks on two nodes of four devices
  EXPECT_GT(e.devices.value, 8 * (100.0 + 0.25 * 400.0) * step);       // no device takes less than a waiting one
  EXPECT_LT(e.devices.value, 8 * 500.0 * step);
  EXPECT_DOUBLE_EQ(e.site, 1.5 * e.computers().value);
  EXPECT_DOUBLE_EQ(e.kg_co2e, 1e-7 * e.site);
  // The cluster's figures are exact here. Only the time and the share of its range that a device draws are uncertain.
  const double above_idle = e.devices.value - 8 * 100.0 * step, all = e.computers().value;
  EXPECT_NEAR(e.power_spread, 0.15 * above_idle / all, 1e-9);
  EXPECT_NEAR(e.spread, std::hypot(0.1, e.power_spread), 1e-12);
  EXPECT_EQ(e.spread, e.co2e_spread);
  cluster::Cluster unsure = round_cluster();
  unsure.device.idle_power.spread = 0.2, unsure.device.peak_power.spread = 0.1, unsure.node.host_power.spread = 0.3;
  unsure.site.pue.spread = 0.05, unsure.site.intensity.spread = 0.4;
  const StepEnergy u = energy_of(stages, timelines, unsure, neutral(), 0.1);
  const double at_peak_s = above_idle / 400, at_idle_s = 8 * step - at_peak_s;
  const double devices = std::hypot(at_idle_s * 100 * 0.2, at_peak_s * 500 * 0.1, above_idle * 0.15);
  EXPECT_EQ(u.computers().value, all);
  EXPECT_NEAR(u.power_spread, std::hypot(devices, 0.3 * e.hosts.value) / all, 1e-9);
  EXPECT_NEAR(u.spread, std::hypot(0.1, u.power_spread), 1e-12);
  EXPECT_NEAR(u.site_spread, std::hypot(u.spread, 0.05), 1e-12);
  EXPECT_NEAR(u.co2e_spread, std::hypot(u.site_spread, 0.4), 1e-12);
  // Between steps devices take the power of waiting, and hosts theirs.
  const StepEnergy longer = energy_of(stages, timelines, round_cluster(), neutral(), 0.1, 0.2);
  EXPECT_NEAR(longer.devices.value - e.devices.value, 8 * (100.0 + 0.25 * 400.0) * 0.2 * step, 1e-9 * e.devices.value);
  EXPECT_NEAR(longer.hosts.value, 1.2 * e.hosts.value, 1e-9 * e.hosts.value);
}

TEST(Factors, AreRefusedByName) {
  try {
    Factors::parse(R"({"gem": 1})", "f.json");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "f.json: there is no factor 'gem'; did you mean 'gemm'?");
  }
  EXPECT_THROW(Factors::parse(R"({"gemm": 0})", "f"), UsageError);
  EXPECT_THROW(Factors::parse(R"({"gemm": "x"})", "f"), UsageError);
  EXPECT_THROW(Factors::parse("[1]", "f"), UsageError);
  EXPECT_THROW(Factors::parse("{", "f"), UsageError);
  EXPECT_EQ(Factors::parse(R"({"gemm": 0.5})", "f").of("gemm"), 0.5);
  EXPECT_GT(Factors::shipped().spread(), 0.0);
}

}  // namespace
}  // namespace molen::sim
