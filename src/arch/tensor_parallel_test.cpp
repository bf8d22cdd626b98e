#include "arch/tensor_parallel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"

namespace molen::arch {
namespace {

// Every element of a cut parameter is on exactly one rank, every other one on all.
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

// Each query head of a rank finds the key head that it has in the whole model.
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

TEST(TensorParallel, SaysWhichDegreesFit) {
  try {
    validate_tensor_parallel(preset("llama3-8b"), 3);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("1, 2, 4, 8, 16, 32"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace molen::arch
