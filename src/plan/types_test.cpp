// Tests the types over the mesh (program/types/check.h) of every layout that `molen verify --static` builds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "base/test_sanitized.h"
#include "plan/layouts.h"
#include "plan/static_check.h"
#include "program/build/build.h"
#include "program/types/check.h"

namespace molen::plan {
namespace {

program::Setting small_batch() {
  program::Setting base;
  base.micro_batch = 2;
  base.sequence = 32;
  base.head_chunk = 32;
  base.global_batch = 32;
  return base;
}

arch::Architecture four_heads(const char* preset, bool tied) {
  arch::Architecture a = arch::preset(preset);
  a.name = "custom";
  a.layers = 4;
  a.hidden = 24;
  a.ffn = 48;
  a.heads = 12;
  a.kv_heads = preset[0] == 'l' ? 4 : 12;  // tensor ranks that do not divide the KV heads share them
  a.head_dim = 2;
  a.vocabulary = 53;
  a.max_sequence = 64;
  a.tied = tied;
  return a;
}

// Checks layouts that cover all pairs of choices, for each form of attention, document mask and type of messages.
TEST(Types, OfLayoutsOnUpToSixteenRanks) {
  std::size_t layouts = 0, turn = 0;
  const auto check = [&](const arch::Architecture& a, int ranks) {
    for (const bool documents : {false, true})
      for (const auto form : {program::ContextForm::kGather, program::ContextForm::kRing})
        for (const DType reduce : {DType::kF32, DType::kBF16}) {
          program::Setting base = small_batch();
          base.document_mask = documents;
          base.context_form = form;
          base.reduce = reduce;
          base.offload = {true, ranks % 4 == 0, ranks % 3 == 0, true};
          for (const Layout& l : covering_pairs(layouts_of(a, base, ranks, {}))) {
            if (turn++ % long_stride() != 0) continue;
            SCOPED_TRACE(fmt::format("{} on {} ranks: {}", a.name, ranks, l.name));
            for (const program::Program& p : program::build_stages(a, l.setting)) {
              const auto errors = program::type_errors(p);
              ASSERT_TRUE(errors.empty()) << errors.front();
            }
            ++layouts;
          }
        }
  };
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 16}) {
    if (kSanitized && ranks != 6) continue;  // most of the time is spent on listing layouts
    for (const arch::Architecture& a :
         {four_heads("llama-tiny", false), four_heads("llama-tiny", true), four_heads("gpt2", true)})
      check(a, ranks);
  }
  fmt::print("{} layouts type-check\n", layouts);
  EXPECT_GT(layouts * long_stride(), kSanitized ? 100u : 1000u);
}

TEST(Types, OfTenThousandRanksInSeconds) {
  const arch::Architecture a = arch::preset("llama3-8b");
  program::Setting base;
  base.sequence = 8192;
  base.global_batch = 10000;
  std::vector<Layout> layouts = covering_pairs(layouts_of(a, base, 10000, {}));
  Seconds types, slowest;
  std::size_t programs = 0, turn = 0;
  for (Layout& l : layouts) {
    if (turn++ % kStride != 0) continue;
    SCOPED_TRACE(l.name);
    const std::int64_t few = repeating_micro_batches(l.setting);
    l.setting.global_batch = few * l.setting.micro_batch * l.setting.data_ranks();
    const auto stages = program::build_stages(a, l.setting);
    const auto start = now();
    for (const program::Program& p : stages) EXPECT_TRUE(program::type_errors(p).empty());
    const Seconds took = now() - start;
    types += took;
    slowest = std::max(slowest, took);
    programs += stages.size();
  }
  fmt::print("{} layouts of 10,000 ranks, {} programs: types of all in {:.2f} s, of the slowest in {:.3f} s\n",
             layouts.size() / kStride, programs, types.value, slowest.value);
  if (!kSanitized) {
    EXPECT_LT(slowest.value, 5.0);
  }
}

}  // namespace
}  // namespace molen::plan
