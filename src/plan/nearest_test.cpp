#include "plan/nearest.h"

#include <gtest/gtest.h>

#include "program/build.h"
#include "program/memory.h"

namespace molen::plan {
namespace {

arch::Architecture model() {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 4;
  return a;
}

program::Setting given() {
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = 4;
  s.global_batch = 16;
  s.micro_batch = 4;
  s.sequence = 64;
  return s;
}

Bytes peak(const program::Setting& s) {
  return program::peak_of(program::build_stages(model(), s));
}

TEST(Nearest, FitsAndDiffersLeast) {
  const auto s = given();
  const Bytes whole = peak(s);
  // A little less: one other choice is enough.
  for (const Fitting& f : nearest_that_fit(model(), s, 4, Bytes(whole.value - 1))) {
    EXPECT_EQ(f.layout.setting.ranks(), 4);
    EXPECT_LT(f.peak, whole);
    EXPECT_EQ(f.peak, peak(f.layout.setting));
    int differ = 0;
    for (std::size_t i = 0; i < f.layout.choices.size(); ++i) differ += f.layout.choices[i] != choices_of(s)[i];
    EXPECT_EQ(differ, 1) << f.layout.name;
  }
  EXPECT_EQ(nearest_that_fit(model(), s, 4, Bytes(whole.value - 1)).size(), 3u);
  // What fits needs nothing else.
  const auto same = nearest_that_fit(model(), s, 4, whole);
  ASSERT_FALSE(same.empty());
  EXPECT_EQ(same.front().layout.setting, s);
}

TEST(Nearest, KeepsTensorRanksOnANode) {
  const auto s = given();
  for (const Fitting& f : nearest_that_fit(model(), s, 1, peak(s), 1000)) EXPECT_EQ(f.layout.setting.tensor_ranks(), 1);
}

TEST(Nearest, SaysWhereNothingFits) {
  EXPECT_TRUE(nearest_that_fit(model(), given(), 4, Bytes(1000)).empty());
  EXPECT_NE(nearest_text(model(), given(), 4, Bytes(1000)).find("none of the nearest layouts of 4 ranks"),
            std::string::npos);
  const std::string text = nearest_text(model(), given(), 4, Bytes(peak(given()).value - 1));
  EXPECT_NE(text.find("nearest layouts that fit: "), std::string::npos) << text;
}

}  // namespace
}  // namespace molen::plan
