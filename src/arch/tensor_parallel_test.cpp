#include "arch/tensor_parallel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::arch {
namespace {

// Every element of a split parameter is on exactly one rank; every element of any other parameter is on all ranks.
TEST(TensorParallel, BlocksTileEachParameter) {
  for (const char* name : {"llama3-8b", "llama3-30b", "gpt2", "poro-34b", "gpt-1t", "olmo-7b"})
    for (const int ranks : {1, 2, 4}) {
      const Architecture& a = preset(name);
      if (tensor_degrees(a, ranks).back() != ranks) continue;
      const auto whole = parameters(a), local = tensor_local_parameters(a, ranks);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        std::int64_t elements = 0;
        for (int r = 0; r < ranks; ++r) {
          const Block b = block_of(whole[i], local[i], r, ranks);
          elements += b.rows * b.columns;
          EXPECT_LE(b.rows * b.columns, local[i].elements()) << whole[i].name;
        }
        EXPECT_EQ(elements, whole[i].elements() * (local[i].shard == ShardDim::kNone ? ranks : 1)) << whole[i].name;
      }
    }
}

// Checks the blocks of the third rank of four: rows of row-split matrices, columns of column-split matrices, and all of
// unsplit parameters.
TEST(TensorParallel, BlocksAreWhereTheyAre) {
  Parameter matrix, vector;
  matrix.shape = {10, 12}, vector.shape = {10};
  const auto text = [](const Parameter& whole, ShardDim cut, int rank, int ranks) {
    Parameter local = whole;
    local.shard = cut;
    const Block b = block_of(whole, local, rank, ranks);
    return fmt::format("rows {} + {}, columns {} + {} of {}", b.first_row, b.rows, b.first_column, b.columns,
                       b.all_columns);
  };
  EXPECT_EQ(text(matrix, ShardDim::kNone, 2, 4), "rows 0 + 10, columns 0 + 12 of 12");
  EXPECT_EQ(text(matrix, ShardDim::kRows, 2, 4), "rows 6 + 2, columns 0 + 12 of 12");
  EXPECT_EQ(text(matrix, ShardDim::kColumns, 2, 4), "rows 0 + 10, columns 6 + 3 of 12");
  EXPECT_EQ(text(matrix, ShardDim::kRows, 0, 1), "rows 0 + 10, columns 0 + 12 of 12");
  EXPECT_EQ(text(vector, ShardDim::kNone, 2, 4), "rows 0 + 10, columns 0 + 1 of 1");
  EXPECT_EQ(text(vector, ShardDim::kRows, 1, 4), "rows 3 + 3, columns 0 + 1 of 1");
}

// The shapes are in the order: embedding; norm, q, k, v, output, norm, gate, up, down of a layer; last norm. KV heads
// that cannot be divided stay whole.
TEST(TensorParallel, LocalShapes) {
  const GoldenMessages golden;
  Architecture a = preset("llama-tiny");  // 4 heads, 2 KV heads of 64, FFN 704
  a.vocabulary = 16383;
  const auto shapes = [&](int ranks) {
    std::string text;
    for (const Parameter& p : tensor_local_parameters(a, ranks))
      if (p.layer <= 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", fmt::join(p.shape, "x"));
    return text;
  };
  EXPECT_EQ(shapes(1), "16383x256, 256, 256x256, 128x256, 128x256, 256x256, 256, 704x256, 704x256, 256x704, 256");
  EXPECT_EQ(shapes(2), "8192x256, 256, 128x256, 64x256, 64x256, 256x128, 256, 352x256, 352x256, 256x352, 256");
  EXPECT_EQ(shapes(4), "4096x256, 256, 64x256, 128x256, 128x256, 256x64, 256, 176x256, 176x256, 256x176, 256");
  EXPECT_NOTED(tensor_local_parameters(a, 3), UsageError);
  a = preset("gpt2");  // 12 heads of 64, biases
  a.layers = 1, a.kv_heads = 2, a.vocabulary = 100, a.max_sequence = 10;
  EXPECT_EQ(shapes(4),
            "25x768, 10x768, 768, 768, 192x768, 128x768, 128x768, 192, 128, 128, 768x192, 768, 768, 768, 768x768, 768, "
            "768x768, 768, 768, 768");
}

// Each query head of a rank uses the same key head as in the whole model.
RC_GTEST_PROP(TensorParallel, QueryHeadsKeepTheirKeyHeads, ()) {
  Architecture a = preset("llama-tiny");
  a.kv_heads = *rc::gen::inRange<std::int64_t>(1, 16);
  a.heads = a.kv_heads * *rc::gen::inRange<std::int64_t>(1, 12);
  a.ffn = 5040;
  const auto degrees = tensor_degrees(a, 64);
  const int ranks = *rc::gen::elementOf(degrees);
  const Architecture local = tensor_local(a, ranks);
  RC_ASSERT(local.heads * ranks == a.heads);
  RC_ASSERT(local.heads % local.kv_heads == 0);
  for (int r = 0; r < ranks; ++r) {
    const auto heads = kv_heads_of(a, r, ranks);
    RC_ASSERT(static_cast<std::int64_t>(heads.size()) == local.kv_heads);
    for (std::int64_t q = 0; q < local.heads; ++q)
      RC_ASSERT(heads[static_cast<std::size_t>(q / (local.heads / local.kv_heads))] ==
                (r * local.heads + q) / (a.heads / a.kv_heads));
  }
}

RC_GTEST_PROP(TensorParallel, EvenRangesTile, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(0, 1000);
  const int ranks = *rc::gen::inRange(1, 40);
  std::int64_t next = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto [first, last] = even_range(count, r, ranks);
    RC_ASSERT(first == next && last - first <= even_range(count, 0, ranks).second);
    next = last;
  }
  RC_ASSERT(next == count);
}

// A norm over all heads would need the heads of other ranks.
TEST(TensorParallel, RefusesNormsOverAllHeads) {
  Architecture a = preset("qwen3-0.6b");
  EXPECT_EQ(tensor_degrees(a, 4), (std::vector<int>{1, 2, 4}));
  a.qk_norm = QkNorm::kAll;
  EXPECT_EQ(tensor_degrees(a, 4), std::vector<int>{1});
  EXPECT_NO_THROW(validate_tensor_parallel(a, 1));
  try {
    validate_tensor_parallel(a, 2);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "parallel.tensor: 2 ranks have different heads, and model.qk_norm = \"all\" takes one norm over the heads "
        "of all of them, which is not implemented; parallel.tensor = 1 trains this model, and model.qk_norm = "
        "\"head\" can be shared");
  }
}

TEST(TensorParallel, SaysWhichDegreesFit) {
  try {
    validate_tensor_parallel(preset("llama3-8b"), 3);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "parallel.tensor: 3 ranks cannot share 32 heads, FFN 14336 and vocabulary 128256 evenly; these degrees "
        "fit: 1, 2, 4, 8, 16, 32");
  }
}

// If key heads cannot be dealt to ranks evenly, each rank has all of them with their biases.
TEST(TensorParallel, KeysAndValuesThatDoNotDivideAreOnEveryRank) {
  Architecture a = preset("gpt2");
  a.name = "custom", a.layers = 3, a.hidden = 136, a.ffn = 228, a.heads = 12, a.kv_heads = 3, a.head_dim = 20;
  a.vocabulary = 1021;
  for (const auto& [ranks, copied] : {std::pair{4, true}, std::pair{3, false}, std::pair{2, true}}) {
    const auto whole = parameters(a), local = tensor_local_parameters(a, ranks);
    int seen = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const Role role = whole[i].role;
      const bool kv = role == Role::kKey || role == Role::kValue || role == Role::kKeyBias || role == Role::kValueBias;
      if (!kv) continue;
      ++seen;
      EXPECT_EQ(local[i].shard == ShardDim::kNone, copied) << whole[i].name << " on " << ranks;
      EXPECT_EQ(local[i].shape[0], whole[i].shape[0] / (copied ? 1 : ranks)) << whole[i].name << " on " << ranks;
    }
    EXPECT_EQ(seen, 4 * 3) << "weights and biases of 3 layers";
  }
}

}  // namespace
}  // namespace molen::arch
