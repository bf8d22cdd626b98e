#include "base/set_cover.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace molen {
namespace {

using Sets = std::vector<std::vector<std::string>>;
using Indices = std::vector<std::size_t>;

// The set with the most members that are missing comes first, and the first of equal ones.
TEST(SetCover, TakesWhatAddsMost) {
  EXPECT_EQ(set_cover(Sets{}), Indices{});
  EXPECT_EQ(set_cover(Sets{{}, {}}), Indices{});
  EXPECT_EQ(set_cover(Sets{{"a"}, {"a", "b"}, {"b", "a"}, {"c"}}), (Indices{1, 3}));
  EXPECT_EQ(set_cover(Sets{{"a", "b"}, {"c", "d"}, {"b", "c", "e"}}), (Indices{0, 1, 2}));
}

RC_GTEST_PROP(SetCover, HasEveryMemberAndNoSetThatAddsNone, ()) {
  const auto drawn =
      *rc::gen::container<std::vector<std::vector<int>>>(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 12)));
  Sets sets;
  std::set<std::string> all, covered;
  for (const auto& set : drawn) {
    auto& names = sets.emplace_back();
    for (const int member : std::set<int>(set.begin(), set.end())) names.push_back(std::to_string(member));
    all.insert(names.begin(), names.end());
  }
  const Indices chosen = set_cover(sets);
  RC_ASSERT(std::is_sorted(chosen.begin(), chosen.end()));
  for (const std::size_t i : chosen) covered.insert(sets.at(i).begin(), sets.at(i).end());
  RC_ASSERT(covered == all);
  RC_ASSERT(chosen.size() <= all.size());
}

}  // namespace
}  // namespace molen
