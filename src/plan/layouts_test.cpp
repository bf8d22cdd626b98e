#include "plan/layouts.h"

#include <gtest/gtest.h>

#include <set>

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

TEST(Layouts, EachUsesAllRanksAndIsSound) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 2;
  for (const int ranks : {1, 2, 4, 6, 8}) {
    std::set<std::string> names;
    for (const Layout& l : layouts_of(base(3), ranks, {})) {
      EXPECT_EQ(l.setting.data_ranks(), ranks);
      EXPECT_TRUE(names.insert(l.name).second) << l.name << " stands twice";
      EXPECT_TRUE(program::verify(program::build(a, l.setting)).empty()) << l.name;
    }
    // Recompute or not, times micro-batches of 3 and 1, times strategies: 4, and two hybrids with two homes of the
    // optimizer for each proper division.
    const std::size_t divisions = ranks == 4 ? 1 : ranks == 6 || ranks == 8 ? 2 : 0;
    EXPECT_EQ(names.size(), 4 * (ranks == 1 ? 1 : 4 + 4 * divisions)) << ranks;
  }
}

TEST(Layouts, KeepsWhatIsWanted) {
  for (const Layout& l : layouts_of(base(1), 8, {"HYBRID_SHARD"})) EXPECT_EQ(l.strategy, "HYBRID_SHARD");
  EXPECT_EQ(layouts_of(base(1), 8, {"ZERO1"}).size(), 2u);
  EXPECT_THROW(layouts_of(base(1), 8, {"FULLSHARD"}), UsageError);
  EXPECT_THROW(layouts_of(base(1), 2, {"HYBRID_SHARD"}), UsageError);  // 2 ranks have no proper division
}

}  // namespace
}  // namespace molen::plan
