#include "checkpoint/digest.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace molen::checkpoint {
namespace {

template <class Word>
StateDigest of(DType dtype, const std::vector<Word>& words) {
  StateDigest d;
  const auto count = static_cast<std::int64_t>(words.size());
  d.add("layers.0.weight", dtype, {count / 4, 4}, 0, count, words.data());
  return d;
}

template <class Word>
std::vector<Word> counting() {
  std::vector<Word> words(12);
  std::iota(words.begin(), words.end(), Word{1});
  return words;
}

// Digests are in events and in users' comparisons, so they are the same in every version.
TEST(Digest, StaysAsItIs) {
  EXPECT_EQ(of(DType::kU8, counting<std::uint8_t>()).hex(), "cfeb6ff888bb0328531aa688e933caa7");
  EXPECT_EQ(of(DType::kBF16, counting<std::uint16_t>()).hex(), "5661240c70360ecac7a70a68b0fa51d6");
  EXPECT_EQ(of(DType::kF32, counting<std::uint32_t>()).hex(), "dbc59ca4963f85c3b0586f213c585d35");
  EXPECT_EQ(of(DType::kF64, counting<std::uint64_t>()).hex(), "dd92fc9d60a35b787ad89e8152186628");
}

// A tensor without dimensions is one element.
TEST(Digest, HasScalars) {
  const float value = 2.5F, other = 2.0F;
  const auto of_box = [](const float& v) {
    StateDigest d;
    d.add("scale", DType::kF32, {}, Box{}, &v);
    return d.hex();
  };
  StateDigest element;
  element.add("scale", DType::kF32, {}, 0, 1, &value);
  EXPECT_EQ(of_box(value), element.hex());
  EXPECT_NE(of_box(value), of_box(other));
}

// 128 bits detect more than 64 only if the lanes are independent: each bit flip changes both lanes, by amounts that do
// not follow from each other, and each flip changes them by different amounts.
TEST(Digest, TheLanesAreTwo) {
  const auto words = counting<std::uint32_t>();
  const StateDigest base = of(DType::kF32, words);
  std::set<std::uint64_t> first, second, difference;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (int bit = 0; bit < 32; ++bit) {
      auto changed = words;
      changed[i] ^= 1u << bit;
      const auto lanes = of(DType::kF32, changed).lanes();
      const std::uint64_t a = lanes[0] - base.lanes()[0], b = lanes[1] - base.lanes()[1];
      first.insert(a), second.insert(b), difference.insert(b - a);
    }
  for (const auto* all : {&first, &second, &difference}) {
    EXPECT_EQ(all->size(), words.size() * 32);
    EXPECT_FALSE(all->contains(0));
  }
  EXPECT_EQ(base.hex().size(), 32u);
  EXPECT_NE(base.hex().substr(0, 16), base.hex().substr(16));
  EXPECT_EQ(StateDigest::from_lanes({0x12, 0xabcdef}).hex(), "00000000000000120000000000abcdef");
}

TEST(Digest, MergeAddsBothLanes) {
  StateDigest sum = StateDigest::from_lanes({~0ull, 5});
  sum.merge(StateDigest::from_lanes({3, ~0ull}));
  EXPECT_EQ(sum.lanes(), (std::array<std::uint64_t, 2>{2, 4}));
}

}  // namespace
}  // namespace molen::checkpoint
