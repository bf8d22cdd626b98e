#include "data/ngram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::data {
namespace {

TEST(Ngram, ProbabilitiesSumToOne) {
  for (int order = 1; order <= 7; ++order) {
    NgramModel model(order);
    model.train("de kat en de mat");
    model.train("de hond");
    for (const std::string before : {"", "d", "de ", "zzz", "de kat", "en de h"}) {
      double sum = 0;
      for (int symbol = 0; symbol <= NgramModel::kEnd; ++symbol) sum += model.probability(before, symbol);
      EXPECT_NEAR(sum, 1.0, 257 * 1e-15) << order << " '" << before << "'";
    }
  }
}

TEST(Ngram, WittenBellByHand) {
  NgramModel model(2);
  model.train("aab");                                  // symbols a a b end
  const double unigram_a = (2 + 3.0 / 257) / (4 + 3);  // 4 symbols, 3 kinds
  EXPECT_NEAR(model.probability("", 'a'), unigram_a, 1e-15);
  EXPECT_NEAR(model.probability("a", 'a'), (1 + 2 * unigram_a) / (2 + 2), 1e-15);  // after a: a, b
  EXPECT_NEAR(model.probability("q", 'a'), unigram_a, 1e-15) << "an unseen context passes on";
  EXPECT_NEAR(NgramModel(3).probability("ab", 'c'), 1.0 / 257, 1e-15);
}

TEST(Ngram, BitsAreTheSumOverTheDocumentAndItsEnd) {
  NgramModel model(3);
  model.train("abcabd");
  double bits = 0;
  const std::string text = "abd";
  for (std::size_t i = 0; i <= text.size(); ++i)
    bits -= std::log2(model.probability(std::string_view(text).substr(0, i),
                                        i < text.size() ? static_cast<unsigned char>(text[i]) : NgramModel::kEnd));
  EXPECT_NEAR(model.bits(text), bits, 1e-12);
  std::string more;
  for (int i = 0; i < 2000; ++i) more += "ab" + std::to_string(i);  // forces the tables to grow
  NgramModel large(5);
  large.train(more);
  EXPECT_LT(large.bits(more) / static_cast<double>(more.size()), 3.0);
  EXPECT_TRUE(std::isfinite(large.bits(std::string("\xff\x00\xfe", 3))));
}

TEST(Ngram, OrderIsLimited) {
  const GoldenMessages golden;
  EXPECT_NOTED(NgramModel(0), UsageError);
  EXPECT_NOTED(NgramModel(8), UsageError);
}

}  // namespace
}  // namespace molen::data
