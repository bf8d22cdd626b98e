// Tests model FLOPs and the choice of the head's chunk.
#include "arch/parts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::arch {
namespace {

// The 56.4M Llama of the benchmarks.
Architecture bench_llama() {
  Architecture a;
  a.name = "custom";
  a.layers = 8, a.hidden = 512, a.ffn = 1408, a.heads = 8, a.kv_heads = 4, a.head_dim = 64, a.vocabulary = 32000,
  a.max_sequence = 512;
  return a;
}

TEST(PartCost, StepOfTheBenchmarkIs517GigaFlop) {
  // The reference is 6 x 40.0M parameters without the input embedding x 2048 tokens, with causal attention at half.
  EXPECT_NEAR(model_flops(bench_llama(), 2048, 512, FlopsConvention::kCausal).value, 517e9, 1e9);
  const double n = 56.4e6, attention = 12.0 * 8 * 8 * 64 * 512;
  EXPECT_NEAR(model_flops(bench_llama(), 2048, 512, FlopsConvention::kPalm).value, 2048 * (6 * n + attention),
              2048 * 6 * 0.1e6);
}

// The router and two experts compute each token: 6 FLOPs for each element of their matrices.
TEST(PartCost, SparseLayersCostWhatATokenMeets) {
  Architecture a = bench_llama();
  const double dense = model_flops(a, 2048, 512, FlopsConvention::kCausal).value;
  a.experts = Experts{.count = 16, .per_token = 2, .ffn = 704};
  EXPECT_EQ(model_flops(a, 2048, 512, FlopsConvention::kCausal).value - dense, 6.0 * 2048 * 8 * 16 * 512);
  const double palm = model_flops(a, 1, 512, FlopsConvention::kPalm).value;
  a.experts->count = 17;
  EXPECT_EQ(model_flops(a, 1, 512, FlopsConvention::kPalm).value - palm, 6.0 * 8 * 512);
}

// If each of 512 tokens chooses two of 16 experts, the even share of an expert is 64 tokens.
TEST(ExpertCapacity, IsTheShareRoundedUp) {
  Experts e{.count = 16, .per_token = 2, .ffn = 704};
  const auto of = [&](double factor, std::int64_t sequence) {
    e.capacity = factor;
    return capacity_of(e, sequence);
  };
  EXPECT_EQ(of(0.0, 512), 512);
  EXPECT_EQ(of(1.0, 512), 64);
  EXPECT_EQ(of(1.25, 512), 80);
  EXPECT_EQ(of(1.01, 512), 65);
  EXPECT_EQ(of(1e-9, 512), 1);
  EXPECT_EQ(of(8.0, 512), 512);
  EXPECT_EQ(of(1e300, 512), 512);
  EXPECT_EQ(of(1.0, 1), 1);
  // The nearest double to 0.07 times 100 is above 7.
  EXPECT_GT(0.07 * 100.0, 7.0);
  EXPECT_EQ(of(0.07, 800), 7);
  // On one rank, the rows are the choices of the tokens, or what all experts take. On several ranks, they are the rows
  // for the rank's experts from all ranks' sequences.
  const auto rows = [&](double factor, int ranks) {
    e.capacity = factor;
    return most_rows_of_experts(e, {3, 512}, ranks);
  };
  EXPECT_EQ(rows(0.0, 1), 3 * 512 * 2);
  EXPECT_EQ(rows(1.0, 1), 3 * 512 * 2);
  EXPECT_EQ(rows(0.5, 1), 3 * 512);
  EXPECT_EQ(rows(0.0, 4), 4 * 3 * 512 * 2);
  EXPECT_EQ(rows(1.25, 4), 4 * 3 * 4 * 80);
  EXPECT_EQ(rows(0.0, 16), 16 * 3 * 512);
  EXPECT_EQ(rows(1.25, 16), 16 * 3 * 80);
  // Each of four context ranks has 128 tokens of a sequence of 512, and 80 of them may be those that an expert takes.
  // An even share of all rows is as if each expert took 20 of them.
  e.capacity = 1.25;
  EXPECT_EQ(most_rows_of_experts(e, {3, 128, 4}, 1), 3 * 128 * 2);
  EXPECT_EQ(most_rows_of_experts(e, {3, 128, 4}, 16), 16 * 3 * 80);
  e.capacity = 0.5;
  EXPECT_EQ(most_rows_of_experts(e, {3, 128, 4}, 16), 16 * 3 * 32);
  EXPECT_EQ(even_rows_of_experts(e, {3, 128, 4}), 3 * 128);
  EXPECT_EQ(even_rows_of_experts(e, {1, 128, 3}), (16 * capacity_of(e, 384) + 2) / 3);
  EXPECT_EQ(even_rows_of_experts(e, {3, 512}), most_rows_of_experts(e, {3, 512}, 1));
}

// Tiles are consecutive, have all experts, and differ by one expert at most.
TEST(ExpertTiles, CutTheExpertsOfARank) {
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(experts_of_tile(7, 0, 3), (Range{0, 3}));
  EXPECT_EQ(experts_of_tile(7, 1, 3), (Range{3, 5}));
  EXPECT_EQ(experts_of_tile(7, 2, 3), (Range{5, 7}));
  EXPECT_EQ(experts_of_tile(7, -1, 3), (Range{0, 7}));
  EXPECT_EQ(experts_of_tile(7, 3, 3), (Range{7, 7}));
  // Four ranks with 3 sequences of 512 tokens, of which each chooses two experts.
  const Experts e{.count = 16, .per_token = 2, .ffn = 704};
  EXPECT_EQ(most_rows_of_experts(e, {3, 512}, 4, 3), 4 * 3 * 512 * 2);
  EXPECT_EQ(most_rows_of_experts(e, {3, 512}, 4, 1), 4 * 3 * 512);
}

// At most half of the choices are computed.
TEST(ExpertCapacity, BoundsTheWork) {
  Architecture a = bench_llama();
  a.experts = Experts{.count = 16, .per_token = 2, .ffn = 704};
  const double whole = model_flops(a, 2048, 512, FlopsConvention::kCausal).value;
  a.experts->capacity = 1.0;
  EXPECT_EQ(model_flops(a, 2048, 512, FlopsConvention::kCausal).value, whole);
  a.experts->capacity = 0.5;
  EXPECT_EQ(whole - model_flops(a, 2048, 512, FlopsConvention::kCausal).value, 6.0 * 2048 * 8 * 3 * 704 * 512);
}

TEST(Parts, OfALayerFollowFromItsNumber) {
  Architecture a = bench_llama();
  const Parts dense = parts_of_layer(a, 0);
  const std::vector<Part> of_dense(dense.begin(), dense.end());
  const double whole = model_flops(a, 2048, 512, FlopsConvention::kCausal).value;
  a.experts = Experts{.count = 16, .per_token = 2, .ffn = 704, .dense_layers = 3};
  for (const std::int64_t l : {0, 2, 3, 7}) {
    const Parts parts = parts_of_layer(a, l);
    EXPECT_EQ(std::vector<Part>(parts.begin(), parts.end()) == of_dense, l < 3) << l;
  }
  // Two experts cost what the MLP does, and each of five layers has a router.
  EXPECT_EQ(model_flops(a, 2048, 512, FlopsConvention::kCausal).value - whole, 6.0 * 2048 * 5 * 16 * 512);
  a.experts->shared = 2;  // the shared experts cost as much as the MLP once more
  EXPECT_EQ(model_flops(a, 2048, 512, FlopsConvention::kCausal).value - whole, 6.0 * 2048 * 5 * (16 + 3 * 1408) * 512);
  EXPECT_EQ(parts_of_layer(a, 2).size(), of_dense.size());
  const std::vector<Part> all = parts_in_order(a);
  for (const Part part : kAllParts) {
    const bool of_others =
        part == Part::kQkNorm || part == Part::kLimit || part == Part::kHeadLogits || part == Part::kHeadLoss;
    EXPECT_EQ(std::count(all.begin(), all.end(), part), of_others ? 0 : 1) << name_of(part);
  }
}

TEST(PartCost, FlopsConventionsHaveNames) {
  const GoldenMessages golden;
  for (const auto convention : {FlopsConvention::kCausal, FlopsConvention::kPalm}) {
    EXPECT_EQ(flops_convention_from_name(name_of(convention)), convention);
    EXPECT_NE(formula_of(convention).find("L h D s"), std::string_view::npos);
  }
  EXPECT_NE(name_of(FlopsConvention::kCausal), name_of(FlopsConvention::kPalm));
  for (const char* name : {"", "Palm", "hfu", "causal "}) EXPECT_NOTED(flops_convention_from_name(name), UsageError);
}

TEST(PartCost, HeadChunkBoundsTheLogits) {
  EXPECT_EQ(head_chunk(32000), 1024);
  EXPECT_EQ(head_chunk(300), 1024);
  EXPECT_EQ(head_chunk(50257), 640);
  EXPECT_EQ(head_chunk(128256), 256);
  EXPECT_EQ(head_chunk(10'000'000), 64);
  EXPECT_EQ(head_chunk(32000, true), 2048);
  EXPECT_EQ(head_chunk(128256, true), 2048);
  EXPECT_EQ(head_chunk(256000, true), 1024);
}

}  // namespace
}  // namespace molen::arch
