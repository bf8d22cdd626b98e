#include "base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace molen {
namespace {

TEST(Suggest, FindsTheNearest) {
  const std::vector<std::string> keys{"layers", "hidden", "heads"};
  EXPECT_EQ(nearest("layer", keys), "layers");
  EXPECT_EQ(nearest("hiddne", keys), "hidden");
  EXPECT_EQ(nearest("completely_else", keys), "");
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

}  // namespace
}  // namespace molen
