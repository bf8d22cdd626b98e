#include "plan/layouts.h"

#include <gtest/gtest.h>

#include <set>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "program/build.h"
#include "program/verify.h"

namespace molen::plan {
namespace {

program::Setting base(std::int64_t micro) {
  program::Setting s;
  s.global_batch = 24;
  s.micro_batch = micro;
  s.sequence = 16;
  return s;
}

arch::Architecture model() {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 2;
  return a;
}

TEST(Layouts, EachUsesAllRanksAndIsSound) {
  const arch::Architecture a = model();
  for (const int ranks : {1, 2, 4, 6, 8}) {
    std::set<std::string> names;
    for (const Layout& l : layouts_of(model(), base(3), ranks, {})) {
      EXPECT_EQ(l.setting.ranks(), ranks);
      EXPECT_TRUE(names.insert(l.name).second) << l.name << " stands twice";
      EXPECT_TRUE(program::verify(program::build(a, l.setting)).empty()) << l.name;
    }
    // Of each data-parallel size, strategies: 4, and two hybrids with two homes of the optimizer for each proper
    // division. Times three ways of recompute, micro-batches of 3 and 1, and rows whole or cut over tensor ranks.
    std::size_t expected = 0;
    for (const int tensor : arch::tensor_degrees(a, ranks)) {
      if (ranks % tensor != 0) continue;
      const int data = ranks / tensor;
      std::size_t divisions = 0;
      for (int d = 2; d < data; ++d) divisions += data % d == 0;
      expected += 6 * (data == 1 ? 1 : 4 + 4 * divisions) * (tensor > 1 ? 2 : 1);
    }
    EXPECT_EQ(names.size(), expected) << ranks;
  }
}

TEST(Layouts, KeepsWhatIsWanted) {
  for (const Layout& l : layouts_of(model(), base(1), 8, {"HYBRID_SHARD"})) EXPECT_EQ(l.strategy, "HYBRID_SHARD");
  EXPECT_EQ(layouts_of(model(), base(1), 3, {"ZERO1"}).size(), 3u);  // three ways of recompute
  EXPECT_THROW(layouts_of(model(), base(1), 8, {"FULLSHARD"}), UsageError);
  EXPECT_THROW(layouts_of(model(), base(1), 2, {"HYBRID_SHARD"}), UsageError);  // 2 ranks have no proper division
}

}  // namespace
}  // namespace molen::plan
