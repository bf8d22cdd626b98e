// Tests how a sim::Framework changes the costs of ops.
#include <gtest/gtest.h>

#include <set>

#include "program/values/costs.h"
#include "sim/test_cluster.h"

namespace molen::sim {
namespace {

TEST(DescribedCosts, FrameworksDifferWhereTheySay) {
  program::Setting s = small_setting();
  s.sequence = 1024;
  auto long_model = arch::preset("llama-tiny");
  long_model.max_sequence = 1024;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  const program::Program p = program::build(long_model, s);
  const DescribedCosts plain = costs_of(), unfused = costs_of({.flash_attention = false}),
                       compiled = costs_of({.compiled = true}), fp8 = costs_of({.fp8 = true});
  EXPECT_GT(seconds_of(unfused, p, arch::Part::kAttention), 2.0 * seconds_of(plain, p, arch::Part::kAttention));
  EXPECT_LT(seconds_of(compiled, p, arch::Part::kActivation), 0.9 * seconds_of(plain, p, arch::Part::kActivation));
  EXPECT_EQ(seconds_of(compiled, p, arch::Part::kAttention), seconds_of(plain, p, arch::Part::kAttention));
  EXPECT_EQ(seconds_of(fp8, p, arch::Part::kActivation), seconds_of(plain, p, arch::Part::kActivation));
  EXPECT_EQ(seconds_of(fp8, p, arch::Part::kHead), seconds_of(plain, p, arch::Part::kHead));
  // A loss in kernels of its own moves 14 bytes a logit forward and 14 backward, in each of 16 micro-batches.
  const DescribedCosts whole = costs_of({.whole_logits = true});
  const double chunks = 16.0 * static_cast<double>(p.setting.head_chunks()),
               logits = 16.0 * 1024.0 * static_cast<double>(long_model.vocabulary);
  EXPECT_NEAR(seconds_of(whole, p, arch::Part::kHead) - seconds_of(plain, p, arch::Part::kHead),
              chunks * 1e-6 + 28.0 * logits / 1e12, 1e-9);
  EXPECT_EQ(seconds_of(whole, p, arch::Part::kAttention), seconds_of(plain, p, arch::Part::kAttention));
}

// Pieces of a product that fill the device together take the time of the whole.
TEST(DescribedCosts, PiecesAtOnceHaveTheEfficiencyOfTheWhole) {
  cluster::Cluster c = round_cluster();
  c.device.multiprocessors = 100;
  program::Setting s = small_setting();
  s.sequence = 4096, s.micro_batch = 1;
  s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  auto model = arch::preset("llama-tiny");
  model.max_sequence = 4096;
  model.hidden = 1280, model.heads = model.kv_heads = 16, model.head_dim = 80, model.ffn = 5120;
  const auto down = [&](int pieces, bool at_once) {
    s.tensor_chunks = pieces;
    return seconds_of(DescribedCosts(c, neutral(), {.pieces_at_once = at_once}), program::build(model, s),
                      arch::Part::kDown);
  };
  // 160 tiles of 256 x 128 take two waves of 100; a quarter of them takes one, or smaller and slower tiles.
  EXPECT_GT(down(4, false), 1.04 * down(4, true));
  EXPECT_NEAR(down(4, true), down(1, false), 0.1 * down(1, false));
  EXPECT_EQ(down(1, true), down(1, false));
}

// Context ranks share the queries of a sequence, and each of them meets the keys of all.
TEST(DescribedCosts, UnfusedAttentionMeetsTheKeysOfAllContextRanks) {
  program::Setting s = small_setting();
  s.sequence = 4096;
  auto model = arch::preset("llama-tiny");
  model.max_sequence = 4096;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  const DescribedCosts unfused = costs_of({.flash_attention = false});
  const double whole = seconds_of(unfused, program::build(model, s), arch::Part::kAttention);
  s.mesh[mesh::Axis::kCp] = 4;
  EXPECT_NEAR(seconds_of(unfused, program::build(model, s), arch::Part::kAttention), whole / 4, 0.2 * whole / 4);
}

// The products of whole scores run at the efficiency of products: half of it takes as long again as the products do. A
// backward has twice the products. Each cost is a few 1e-6 s, so that rounding moves the difference of two by some
// 1e-21 s, far below 1e-9 of the products' 1e-8 s.
TEST(DescribedCosts, UnfusedAttentionHasTheEfficiencyOfProducts) {
  cluster::Cluster half = round_cluster();
  half.device.gemm_efficiency.value = 0.5;
  const DescribedCosts whole = costs_of({.flash_attention = false}),
                       slower(half, neutral(), {.flash_attention = false});
  const program::Program p = program_of_setting(small_setting());
  ASSERT_EQ(p.arch.head_dim % 64, 0) << "other heads are slower";
  const double forward = 4.0 * static_cast<double>(p.arch.heads * 64 * 64 * p.arch.head_dim) / 1e14;
  int seen = 0;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) {
      const auto* part = std::get_if<program::Compute>(&step.op);
      if (!part || part->part != arch::Part::kAttention) continue;
      ++seen;
      const double expected = (arch::is_backward(part->pass) ? 2.0 : 1.0) * forward;
      EXPECT_NEAR(slower.seconds(p, step) - whole.seconds(p, step), expected, 1e-9 * expected);
    }
  EXPECT_GT(seen, 1);
}

// A framework that computes whole layers again makes the last product of a layer and its exchange once more, whose
// result nobody reads. The product is the largest term of its op, and the exchange has the bytes of that of the other
// block.
TEST(DescribedCosts, WholeLayersAreComputedAgainWithTheirLastProduct) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kTp] = 2;
  const DescribedCosts plain = costs_of(), whole = costs_of({.whole_layers_again = true});
  for (const bool rows : {false, true})
    for (const std::int64_t every : {0, 1, 2}) {
      s.sequence_parallel = rows, s.recompute = every > 0 ? program::Recompute::full(every) : program::Recompute{};
      const program::Program p = program_of_setting(s);
      std::set<std::int64_t> layers;
      int products = 0, exchanges = 0;
      for (const program::Body& body : p.bodies)
        for (const program::Step& step : body.steps) {
          const double before = plain.seconds(p, step), more = whole.seconds(p, step) - before;
          const auto* c = std::get_if<program::Compute>(&step.op);
          const bool exchange = step.phase == program::Phase::kRecompute && program::is_communication(step.op) &&
                                !std::holds_alternative<program::AllGather>(step.op);
          if (c && c->part == arch::Part::kDown && c->pass == program::Pass::kBackward && every > 0 &&
              c->layer % every == 0) {
            const auto product = program::products_of(p, step)->forward;
            EXPECT_NEAR(more, plain.product_seconds(product, 2, true), 1e-15);
            layers.insert(c->layer);
            ++products;
          } else if (exchange) {
            EXPECT_NEAR(more, before, 1e-15);
            ++exchanges;
          } else {
            EXPECT_EQ(more, 0.0) << program::kind_of(step.op);
          }
        }
      const auto expected = every > 0 ? static_cast<std::size_t>((p.arch.layers + every - 1) / every) : 0u;
      EXPECT_EQ(layers.size(), expected);
      EXPECT_EQ(exchanges, products) << "one in each layer that is computed again";
    }
  // The values of some parts do not need the whole layer.
  s.recompute = {};
  s.recompute.add(arch::Part::kNormUp);
  const program::Program some = program_of_setting(s);
  for (const program::Body& body : some.bodies)
    for (const program::Step& step : body.steps) EXPECT_EQ(whole.seconds(some, step), plain.seconds(some, step));
}

// A layer of Llama has four matrices: query, key and value are one, and so are gate and up. Each of them has the start
// of a collective, a kernel for the piece of each rank, and the copy of its bytes. 1e-15 s is far more than rounding
// takes of costs below 1 s, and far less than a launch.
TEST(DescribedCosts, MatricesThatAreGatheredOneByOneStartACollectiveEach) {
  program::Setting s = small_setting();
  s.mesh[mesh::Axis::kDpShard] = 8, s.zero = 3;
  const DescribedCosts plain = costs_of(), apart = costs_of({.gathers_matrices = true});
  const double start = plain.collective_seconds("all_gather", 0.0, {8, 4, 1});
  EXPECT_NEAR(start, 1e-6 + 6 * 1e-6 + 2 * 1e-5, 1e-15);
  std::set<std::string> kinds;
  for (const bool narrow : {false, true}) {
    s.reduce = narrow ? DType::kBF16 : DType::kF32;
    const program::Program p = program_of_setting(s);
    for (const program::Body& body : p.bodies)
      for (const program::Step& step : body.steps) {
        const double more = apart.seconds(p, step) - plain.seconds(p, step);
        const bool of_unit = std::holds_alternative<program::AllGather>(step.op) ||
                             std::holds_alternative<program::ReduceScatter>(step.op);
        if (!of_unit) {
          EXPECT_EQ(more, 0.0) << program::kind_of(step.op);
          continue;
        }
        const int unit = p.unit_of_buffer(step.operand(program::Arg::kTo).buffer);
        const program::Unit& of = p.units.at(static_cast<std::size_t>(unit));
        // With a tied head, the last unit is a norm, whose vector stays on each rank.
        const int matrices = of.of_layers() ? 4 : of.name == "final" && p.arch.tied ? 0 : 1;
        if (matrices == 0) {
          EXPECT_EQ(more, 0.0);
          continue;
        }
        EXPECT_NEAR(more,
                    (matrices - 1) * start + matrices * 8 * 1e-6 + 2.0 * static_cast<double>(step.moved.value) / 1e12,
                    1e-15);
        kinds.insert(program::kind_of(step.op) + (narrow ? " of messages" : ""));
      }
  }
  EXPECT_EQ(kinds.size(), 4u) << "gathers and scatters, with gradients in both types";
  // Whole parameters are not put together of pieces.
  s.zero = 2;
  const program::Program whole = program_of_setting(s);
  for (const program::Body& body : whole.bodies)
    for (const program::Step& step : body.steps) EXPECT_EQ(apart.seconds(whole, step), plain.seconds(whole, step));
}

}  // namespace
}  // namespace molen::sim
