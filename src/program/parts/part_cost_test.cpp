// Compares costs of parts with hand-worked figures and with the model's FLOPs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "arch/context_parallel.h"
#include "arch/parameters.h"
#include "program/parts/context_attention.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

using arch::Architecture;
using arch::kAllParts;
using arch::kAtenScalars;
using arch::Kernels;
using arch::kWidenBlock;
using arch::Part;
using arch::PartCost;
using arch::PartShape;
using arch::Pass;
using arch::preset;

// The 56.4M Llama of the benchmarks.
Architecture bench_llama() {
  Architecture a;
  a.name = "custom";
  a.layers = 8, a.hidden = 512, a.ffn = 1408, a.heads = 8, a.kv_heads = 4, a.head_dim = 64, a.vocabulary = 32000,
  a.max_sequence = 512;
  return a;
}

TEST(PartCost, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (const Part part : kAllParts) EXPECT_TRUE(names.insert(name_of(part)).second) << name_of(part);
}

TEST(PartCost, PartsAddUpToTheModel) {
  for (const char* name : {"llama-60m", "llama3-8b", "gpt2", "poro-34b", "gpt-1.4b", "olmo-7b", "qwen3-0.6b",
                           "mixtral-8x7b", "olmoe-1b-7b"}) {
    const Architecture& a = preset(name);
    PartShape shape{3, 128, 0, DType::kF32, 2, Kernels::kFused};
    double sum = 0;
    for (const Part part : arch::parts_in_order(a))
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        if (part == Part::kHead && pass == Pass::kForward) continue;  // the backward op includes it
        shape.chunk = part == Part::kHead ? shape.tokens() : 0;
        const bool in_layer = part != Part::kEmbed && part != Part::kFinalNorm && part != Part::kHead;
        sum += part_cost(a, part, pass, shape).flops.value * (in_layer ? static_cast<double>(a.layers) : 1.0);
      }
    const double want = arch::model_flops(a, shape.tokens(), shape.sequence, arch::FlopsConvention::kCausal).value;
    EXPECT_NEAR(sum / want, 1.0, 1e-12) << name;
  }
}

TEST(PartCost, BytesOfOneDownProjection) {
  const auto a = bench_llama();
  const PartShape shape{4, 512, 0, DType::kBF16, 2, Kernels::kAten};
  EXPECT_EQ(part_cost(a, Part::kDown, Pass::kForward, shape).moved.value,
            2 * (2048 * 1408 + 1408 * 512 + 2 * 2048 * 512));
  EXPECT_EQ(part_cost(a, Part::kDown, Pass::kBackward, shape).moved.value,
            2 * (2048 * 512 + 2 * 2048 * 1408 + 1408 * 512) + 2 * 4 * 1408 * 512);
}

TEST(PartCost, ScratchOfTheHeadIsOneChunkOfLogits) {
  const auto a = bench_llama();
  const PartShape shape{4, 512, arch::head_chunk(a.vocabulary), DType::kF32, 2, Kernels::kFused};
  EXPECT_EQ(part_cost(a, Part::kHead, Pass::kBackward, shape).scratch.value, 1024 * 32000 * 4);
  EXPECT_EQ(part_cost(a, Part::kNormQkv, Pass::kForward, shape).scratch.value, 2048 * 512 * 4);
  EXPECT_EQ(part_cost(a, Part::kNormQkv, Pass::kBackward, shape).scratch.value, 2048 * 512 * 4 + 2 * 512 * 4);
}

TEST(PartCost, HalvesAddUpToTheBackward) {
  for (const char* name : {"llama-60m", "gpt2", "poro-34b", "olmo-7b", "qwen3-0.6b", "olmoe-1b-7b"})
    for (const Kernels kernels : {Kernels::kReference, Kernels::kFused, Kernels::kAten})
      for (const DType compute : {DType::kF32, DType::kBF16})
        for (const Part part : arch::parts_in_order(preset(name))) {
          if (compute == DType::kBF16 && kernels != Kernels::kAten) continue;
          const Architecture& a = preset(name);
          const PartShape shape{3, 128, of_head(part) ? 64 : 0, compute, 2, kernels};
          const PartCost whole = part_cost(a, part, Pass::kBackward, shape),
                         input = part_cost(a, part, Pass::kBackwardInput, shape),
                         weights = part_cost(a, part, Pass::kBackwardWeights, shape);
          SCOPED_TRACE(name);
          SCOPED_TRACE(name_of(part));
          EXPECT_EQ(input.flops.value + weights.flops.value, whole.flops.value);
          EXPECT_EQ(std::max(input.scratch.value, weights.scratch.value), whole.scratch.value);
          EXPECT_GE(input.moved.value + weights.moved.value, whole.moved.value);
          EXPECT_GT(input.moved.value, 0);
          if (has_halves(part)) {
            EXPECT_EQ(input.flops.value, weights.flops.value);
            EXPECT_LT(input.moved.value, whole.moved.value);
            EXPECT_LT(weights.moved.value, whole.moved.value);
          } else {
            EXPECT_EQ(input.moved.value, whole.moved.value);
            EXPECT_EQ(weights.flops.value, 0);
            EXPECT_EQ(weights.moved.value, 0);
            EXPECT_EQ(weights.scratch.value, 0);
          }
        }
}

TEST(PartCost, BytesOfHalves) {
  const auto a = bench_llama();
  PartShape shape{4, 512, 0, DType::kBF16, 2, Kernels::kAten};
  const auto moved = [&](Part part, Pass pass) { return part_cost(a, part, pass, shape).moved.value; };
  const std::int64_t n = 2048, d = 512, f = 1408, q = 1024;
  EXPECT_EQ(moved(Part::kDown, Pass::kBackwardInput), 2 * (n * d + d * f + n * f));
  EXPECT_EQ(moved(Part::kDown, Pass::kBackwardWeights), 2 * (n * d + n * f) + 2 * 4 * d * f);
  // d_qkv, weight, x, d_x read and written; rstd; the norm's weight and its gradient read and written
  EXPECT_EQ(moved(Part::kNormQkv, Pass::kBackwardInput), 2 * (n * q + q * d + 3 * n * d + d) + 4 * n + 2 * 4 * d);
  EXPECT_EQ(moved(Part::kNormQkv, Pass::kBackwardWeights), 2 * (n * q + n * d + d) + 4 * n + 2 * 4 * q * d);
}

TEST(PartCost, ScratchOfHalves) {
  const auto a = bench_llama();
  const std::int64_t n = 2048, d = 512, q = 1024;
  PartShape shape{4, 512, 0, DType::kF32, 2, Kernels::kFused};
  const auto scratch = [&](Part part, Pass pass) { return part_cost(a, part, pass, shape).scratch.value; };
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardInput), 4 * n * d + 2 * 4 * d);
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardWeights), 4 * n * d);
  // Tensor ranks assemble rows of q|k|v: the input half assembles the weights, the weight half their gradients.
  shape.tensor_ranks = 8, shape.kv_copied = true;
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackward), 4 * n * d + 2 * 4 * d + 2 * 4 * q * d);
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardInput), 4 * n * d + 2 * 4 * d + 4 * q * d);
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardWeights), 4 * n * d + 4 * q * d);
  // In 16 bits, gradients of a matrix are made in 16 bits, which fp16 adds by widening a block. In bf16 the scratch is
  // at least the packed operands of our own product. The norm's gradient has a sum for each thread, for which fp16
  // widens all of its rows three times.
  shape = {4, 512, 0, DType::kBF16, 2, Kernels::kAten};
  EXPECT_EQ(scratch(Part::kDown, Pass::kBackwardInput), kAtenScalars);
  EXPECT_EQ(scratch(Part::kDown, Pass::kBackwardWeights), kAtenScalars + 2 * 512 * 2048 + 2 * 4 * (128 * 112 + 384));
  EXPECT_EQ(scratch(Part::kNormUp, Pass::kBackwardWeights), kAtenScalars + 2 * n * d + 2 * d * 2816);
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardInput), kAtenScalars + 2 * n * d + 4 * 2 * d);
  shape.compute = DType::kF16;
  EXPECT_EQ(scratch(Part::kDown, Pass::kBackwardWeights), kAtenScalars + 2 * d * 1408 + 4 * kWidenBlock);
  EXPECT_EQ(scratch(Part::kNormQkv, Pass::kBackwardInput), kAtenScalars + 2 * n * d + 3 * 4 * n * d + 4 * n);
}

// In bf16, attention of rows takes for each thread the sums of the queries of one key head. Attention within documents
// widens all rows.
TEST(PartCost, ScratchOfAttentionInBf16) {
  const auto a = bench_llama();
  PartShape shape{4, 512, 0, DType::kBF16, 2, Kernels::kAten};
  const auto scratch = [&] { return part_cost(a, Part::kAttention, Pass::kBackward, shape).scratch.value; };
  const std::int64_t few = scratch();
  EXPECT_EQ(few, kAtenScalars + 2 * 4 * (448 * 48 + 512 * 80 + 21696 + 2 * 512 * 80));
  shape.sequence = 4096;
  EXPECT_EQ(scratch() - few, 2 * 4 * 2 * (4096 - 512) * 80);
  shape.batch = 1, shape.threads = 16;  // too few heads for the threads: the work is split by tiles, without the sums
  EXPECT_EQ(scratch(), kAtenScalars + 16 * 4 * (448 * 48 + 512 * 80 + 21696));
  shape = {4, 512, 0, DType::kBF16, 2, Kernels::kAten};
  shape.documents = true;
  EXPECT_GT(scratch(), 2 * 4 * 2048 * (1024 + 512));
}

// Our own kernels take heads up to their limit. Their scratch grows by whole vectors of 16 elements.
TEST(PartCost, ScratchOfAttentionUpToTheLargestHead) {
  auto a = bench_llama();
  const auto scratch = [&](std::int64_t head, Pass pass) {
    a.heads = 4, a.kv_heads = 2, a.head_dim = head;
    return part_cost(a, Part::kAttention, pass, {1, 64, 0, DType::kF32, 2, Kernels::kAten}).scratch.value;
  };
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const std::int64_t step =
        scratch(arch::kOwnAttentionMaxHead - 16, pass) - scratch(arch::kOwnAttentionMaxHead - 32, pass);
    EXPECT_GT(step, 0);
    EXPECT_EQ(scratch(arch::kOwnAttentionMaxHead, pass) - scratch(arch::kOwnAttentionMaxHead - 16, pass), step);
    EXPECT_NE(scratch(arch::kOwnAttentionMaxHead + 1, pass) - scratch(arch::kOwnAttentionMaxHead, pass), step);
  }
}

// Computed by hand for 6 tokens in 2 sequences and 4 experts of width 24, of which each token chooses 3: 18 rows.
TEST(PartCost, OfASparseLayer) {
  auto a = bench_llama();
  a.hidden = 16, a.experts = arch::Experts{.count = 4, .per_token = 3, .ffn = 24};
  const PartShape shape{2, 3, 0, DType::kBF16, 2, Kernels::kAten};
  const auto forward = [&](Part part) { return part_cost(a, part, Pass::kForward, shape); };
  EXPECT_EQ(forward(Part::kRoute).flops.value, 2.0 * 6 * 4 * 16);
  EXPECT_EQ(forward(Part::kExpertUp).flops.value, 2.0 * 18 * 48 * 16);
  EXPECT_EQ(forward(Part::kExpertDown).flops.value, 2.0 * 18 * 16 * 24);
  EXPECT_EQ(forward(Part::kCombine).flops.value, 0.0);
  // The terms are: rows in and out, router and norm; root mean square, scores, lse and weights; load; labels and
  // choice.
  EXPECT_EQ(forward(Part::kRoute).moved.value,
            2 * (2 * 6 * 16 + 5 * 16) + 4 * (6 * (1 + 4 + 1 + 3) + 2 * 2 * 4) + 4 * (6 + 18));
  EXPECT_EQ(forward(Part::kBalance).moved.value, 4 * (2 * 2 * 4));
  EXPECT_EQ(forward(Part::kDispatch).moved.value, 2 * (6 + 18) * 16 + 4 * (18 + 18 + 5));
  EXPECT_EQ(forward(Part::kExpertUp).moved.value, 2 * (18 * (16 + 48) + 4 * 16 * 48) + 4 * 5);
  EXPECT_EQ(part_cost(a, Part::kExpertDown, Pass::kBackward, shape).moved.value,
            2 * (18 * (16 + 2 * 24) + 4 * 16 * 24) + 2 * 4 * 4 * 16 * 24 + 4 * 5);
  EXPECT_EQ(forward(Part::kCombine).moved.value, 2 * (18 + 12) * 16 + 8 * 18);
  // A capacity of two thirds: an expert takes two of a sequence's three tokens, so 16 rows have a place.
  a.experts->capacity = 2.0 / 3.0;
  EXPECT_EQ(forward(Part::kExpertUp).flops.value, 2.0 * 16 * 48 * 16);
  EXPECT_EQ(forward(Part::kDispatch).moved.value, 2 * (6 + 16) * 16 + 4 * (18 + 18 + 5));
  EXPECT_EQ(forward(Part::kCombine).moved.value, 2 * (16 + 12) * 16 + 8 * 18);
  // Each of two context ranks has three of a sequence's six tokens, of which an expert takes three. Each rank has half
  // of the 24 rows. The counts are those of two sequences, two runs, two kinds of tokens and four experts.
  const std::int64_t alone = forward(Part::kRoute).moved.value;
  PartShape shared = shape;
  shared.context_ranks = 2;
  const auto of_two = [&](Part part) { return part_cost(a, part, Pass::kForward, shared); };
  EXPECT_EQ(of_two(Part::kExpertUp).flops.value, 2.0 * 12 * 48 * 16);
  EXPECT_EQ(of_two(Part::kRoute).moved.value, alone + 4 * (2 * 2 * 2 * 4));
  EXPECT_EQ(of_two(Part::kLimit).moved.value, 4 * (6 + 2 * 18) + 4 * (2 * 2 * 2 * 2 * 4));
  EXPECT_EQ(forward(Part::kRoute).scratch.value - of_two(Part::kRoute).scratch.value, arch::aligned(4 * 4));
  for (const DType wrong : {DType::kF32, DType::kF16})
    EXPECT_TRUE(kernels_refused(Kernels::kAten, Part::kExpertUp, {.compute = wrong})) << name_of(wrong);
  EXPECT_FALSE(kernels_refused(Kernels::kAten, Part::kExpertUp, {.compute = DType::kBF16}));
}

// Some operands exist only in some models, and of some a rank uses only its own rows. Computed by hand for 6 tokens in
// 2 sequences, in bf16.
TEST(PartCost, BytesThatSomeModelsAndRanksUse) {
  auto a = bench_llama();
  a.hidden = 16, a.heads = 4, a.kv_heads = 2, a.head_dim = 4, a.ffn = 24;
  PartShape shape{2, 3, 0, DType::kBF16, 2, Kernels::kAten};
  const auto moved = [&](Part part, Pass pass) { return part_cost(a, part, pass, shape).moved.value; };
  const std::int64_t forward = moved(Part::kAttention, Pass::kForward),
                     backward = moved(Part::kNormUp, Pass::kBackward);
  a.position = arch::Position::kLearned;  // three rows of the positions, besides a row of the table for each token
  EXPECT_EQ(moved(Part::kEmbed, Pass::kForward), 4 * 6 + 2 * (6 + 6 + 3) * 16);
  EXPECT_EQ(moved(Part::kEmbed, Pass::kBackward), 4 * 6 + 2 * 6 * 16 + 8 * (6 + 3) * 16);
  a.position = arch::Position::kAlibi;  // a slope in fp64 for each head
  EXPECT_EQ(moved(Part::kAttention, Pass::kForward) - forward, 8 * 4);
  shape.documents = true;  // where the document of each token begins
  EXPECT_EQ(moved(Part::kAttention, Pass::kForward) - forward, 8 * 4 + 4 * 6);
  // One of four tensor ranks adds the residual in two of the six rows. If it keeps only these, the reduction of the
  // rows adds the residual gradient.
  shape.tensor_ranks = 4;
  EXPECT_EQ(moved(Part::kDown, Pass::kForward), 2 * (6 * 24 + 24 * 16 + 6 * 16 + 2 * 16));
  EXPECT_EQ(moved(Part::kNormUp, Pass::kBackward), backward);
  shape.rows_sharded = true;
  EXPECT_EQ(moved(Part::kNormUp, Pass::kBackward), backward - 2 * 6 * 16);
}

// Offsets say how many rows the experts have, unless there is a row for each choice. In backward, the choice is made,
// and its bias is not read.
TEST(PartCost, BytesOfARouterThatDropsOrMovesTokens) {
  auto a = bench_llama();
  a.hidden = 16, a.experts = arch::Experts{.count = 4, .per_token = 3, .ffn = 24};
  PartShape shape{2, 3, 0, DType::kBF16, 2, Kernels::kAten};
  const auto moved = [&](Part part, Pass pass) { return part_cost(a, part, pass, shape).moved.value; };
  const std::int64_t all = moved(Part::kExpertActivation, Pass::kForward), route = moved(Part::kRoute, Pass::kBackward);
  EXPECT_EQ(all, 2 * 18 * (48 + 24));
  shape.expert_ranks = 2;  // each with two experts
  EXPECT_EQ(moved(Part::kExpertActivation, Pass::kForward), all + 4 * 3);
  shape.expert_ranks = 1, a.experts->capacity = 1e3;
  EXPECT_EQ(moved(Part::kExpertActivation, Pass::kForward), all + 4 * 5);
  a.experts->capacity = 0, a.experts->bias_rate = 0.001;
  EXPECT_EQ(moved(Part::kRoute, Pass::kBackward), route + 2 * 4 * 4);
}

// Computed by hand for 3 of 6 tokens on each of two context ranks, in bf16: 16 columns of queries, 16 of keys and
// values together, 4 heads. Sums are in fp32. The finished output is in bf16, and so are gradients of gathered keys.
TEST(ContextCost, BytesInBf16) {
  auto a = bench_llama();
  a.heads = 4, a.kv_heads = 2, a.head_dim = 4;
  const PartShape shape{1, 3, 0, DType::kBF16, 2, Kernels::kAten};
  const std::int64_t q = 3 * 16, kv = 3 * 16, lse = 4 * 3 * 4;
  const auto ring = [&](int step) { return ring_attention_cost(a, Pass::kBackward, shape, 6, 2, step).moved.value; };
  EXPECT_EQ(ring(0), 2 * (3 * q + kv) + lse + 4 * q + 4 * kv);
  EXPECT_EQ(ring(1), 2 * (3 * q + kv) + lse + 2 * 4 * q + 4 * kv);
  EXPECT_EQ(gathered_attention_cost(a, Pass::kBackward, shape, 6, 2).moved.value, ring(0) + ring(1) - 2 * 2 * kv);
}

TEST(PartCost, LargeModelsDoNotOverflow) {
  for (const auto& [name, part] : [] {
         std::vector<std::pair<const char*, Part>> all;
         for (const char* of : {"gpt-1t", "qwen3-30b-a3b"})
           for (const Part each : arch::parts_in_order(preset(of), true)) all.emplace_back(of, each);
         return all;
       }())
    for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kBackwardInput, Pass::kBackwardWeights})
      for (const Kernels kernels : {Kernels::kReference, Kernels::kFused, Kernels::kAten}) {
        const PartShape shape{16, 2048, of_head(part) ? 256 : 0, DType::kBF16, 64, kernels};
        const PartCost cost = part_cost(preset(name), part, pass, shape);
        EXPECT_GE(cost.flops.value, 0);
        if (pass != Pass::kBackwardWeights || has_halves(part)) {
          EXPECT_GT(cost.moved.value, 0);
        }
        EXPECT_GE(cost.scratch.value, 0);
      }
}

TEST(ContextCost, OfAllRanksIsThatOfTheWhole) {
  const Architecture& a = preset("llama3-8b");
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const std::int64_t S = 4096;
    const PartShape shape{3, S, 0, DType::kF32, 2, Kernels::kFused};
    const std::vector<PositionRun> all{{0, S}};
    const PartCost whole = part_cost(a, Part::kAttention, pass, shape);
    for (const int ranks : {1, 2, 4}) {
      double gathered = 0, ring = 0;
      for (int r = 0; r < ranks; ++r) {
        const std::vector<PositionRun> mine = arch::context_runs(S, r, ranks);
        gathered += context_attention_cost(a, pass, shape, {mine, all}).flops.value;
        for (int k = 0; k < ranks; ++k) {
          const std::vector<PositionRun> keys = arch::context_runs(S, k, ranks);
          ring += context_attention_cost(a, pass, shape, {mine, keys, k > 0}).flops.value;
        }
      }
      EXPECT_EQ(gathered, whole.flops.value);
      EXPECT_EQ(ring, whole.flops.value);
    }
    const PartCost alone = context_attention_cost(a, pass, shape, {all, all});
    EXPECT_EQ(alone.moved.value, whole.moved.value);
    EXPECT_EQ(alone.scratch.value, whole.scratch.value);
    EXPECT_GT(context_attention_cost(a, pass, shape, {all, all, true}).moved.value, alone.moved.value);
  }
}

}  // namespace
}  // namespace molen::program
