#include "base/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace molen {
namespace {

TEST(Suggest, FindsTheNearest) {
  const std::vector<std::string> keys{"layers", "hidden", "heads"};
  EXPECT_EQ(nearest("layer", keys), "layers");
  EXPECT_EQ(nearest("hiddne", keys), "hidden");
  EXPECT_EQ(nearest("completely_else", keys), "");
}

// One insertion, deletion, replacement or exchange of neighbours each.
TEST(Suggest, CountsEdits) {
  const std::tuple<const char*, const char*, int> cases[] = {
      {"", "", 0},       {"", "abc", 3},           {"abc", "", 3},  {"abc", "abc", 0},   {"abc", "abd", 1},
      {"abc", "bc", 1},  {"abc", "xabc", 1},       {"ab", "ba", 1}, {"abcd", "badc", 2}, {"abc", "cab", 2},
      {"abc", "cba", 2}, {"kitten", "sitting", 3}, {"ax", "by", 2}, {"xab", "yba", 2},   {"abx", "cay", 3}};
  for (const auto& [a, b, edits] : cases) {
    EXPECT_EQ(edit_distance(a, b), edits) << a << " " << b;
    EXPECT_EQ(edit_distance(b, a), edits) << b << " " << a;
  }
}

// Characters before a name are not read: here they would make an exchange of neighbours.
TEST(Suggest, NamesWithinOtherText) {
  const std::string_view y_x("yx"), one = y_x.substr(1);
  EXPECT_EQ(edit_distance("ppxy", one), 3);
  EXPECT_EQ(edit_distance(one, "ppxy"), 3);
  EXPECT_EQ(edit_distance("pxyp", one), 3);
  EXPECT_EQ(edit_distance(one, "pxyp"), 3);
}

// A third of the letters may differ, and always two; of equally near names the first wins.
TEST(Suggest, GivesUpBeyondAThird) {
  EXPECT_EQ(nearest("abcd", std::vector<std::string>{"abxy"}), "abxy");
  EXPECT_EQ(nearest("abcd", std::vector<std::string>{"axyz"}), "");
  EXPECT_EQ(nearest("abcdefghijkl", std::vector<std::string>{"abcdefghwxyz"}), "abcdefghwxyz");
  EXPECT_EQ(nearest("abcdefghijkl", std::vector<std::string>{"abcdefgvwxyz"}), "");
  EXPECT_EQ(nearest("ab", std::vector<std::string>{"ax", "ay", "ab"}), "ab");
  EXPECT_EQ(nearest("ab", std::vector<std::string>{"ax", "ay"}), "ax");
  EXPECT_EQ(did_you_mean("hiddne", std::vector<std::string>{"hidden"}), "; did you mean 'hidden'?");
  EXPECT_EQ(did_you_mean("else", std::vector<std::string>{"hidden"}), "");
}

TEST(Suggest, ComparesNoNamesFromFilesWithoutEnd) {
  const std::string longest(256, 'a'), longer(257, 'a');
  EXPECT_EQ(nearest(longest, std::vector<std::string>{longest}), longest);
  EXPECT_EQ(nearest(longer, std::vector<std::string>{longer}), "");
  EXPECT_EQ(nearest("a", std::vector<std::string>{longer, "b"}), "b");
  std::vector<std::string> many((1 << 14) - 1, "far away");
  many.push_back("near");
  EXPECT_EQ(nearest("naer", many), "near");
  many.push_back("one more");
  EXPECT_EQ(nearest("naer", many), "");
}

}  // namespace
}  // namespace molen
