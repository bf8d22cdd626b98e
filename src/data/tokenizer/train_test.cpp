#include "data/tokenizer/train.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/test_golden.h"
#include "data/tokenizer/word_counts.h"

namespace molen::data {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (const char* file : {"LICENSE", "tests/golden/make_tokenizer_golden.py"}) {
    const std::string all = read_file(file);
    for (std::size_t at = 0; at < all.size(); at += 997) texts.push_back(all.substr(at, 997));
  }
  return texts;
}

Tokenizer trained(const TrainOptions& options, const std::vector<std::string>& texts) {
  Trainer trainer(options);
  trainer.add(std::vector<std::string_view>(texts.begin(), texts.end()));
  return trainer.train();
}

// BPE training by its definition, word by word, without bookkeeping. The fast trainer must equal it when no token has
// two derivations.
std::vector<std::string> plain_training(const std::vector<std::vector<std::string>>& start, std::size_t merges,
                                        std::vector<std::string> vocabulary) {
  auto words = start;
  const auto id = [&](const std::string& token) {
    return std::find(vocabulary.begin(), vocabulary.end(), token) - vocabulary.begin();
  };
  std::vector<std::string> made;
  while (made.size() < merges) {
    std::map<std::pair<std::ptrdiff_t, std::ptrdiff_t>, int> counts;
    for (const auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{id(word[i]), id(word[i + 1])}];
    if (counts.empty()) break;
    const auto best = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
      return a.second < b.second;
    });  // first of equals
    if (best->second < 2) break;
    const std::string left = vocabulary[best->first.first], right = vocabulary[best->first.second];
    made.push_back(left + " " + right);
    vocabulary.push_back(left + right);
    for (auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] += right;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return made;
}

TEST(Train, FollowsTheDefinition) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::string> texts;
    std::vector<std::vector<std::string>> words;
    for (int w = 0; w < 60; ++w) {
      std::string word;
      // Neighbouring letters differ, so there are no overlaps (aaa) and no token with two derivations.
      for (std::uint64_t n = 1 + random() % 6; n > 0; --n) word.push_back(static_cast<char>('a' + random() % 20));
      if (std::adjacent_find(word.begin(), word.end()) != word.end()) continue;
      texts.push_back(word);
      auto& symbols = words.emplace_back();
      for (const char c : word) symbols.emplace_back(1, c);
    }
    TrainOptions options;
    options.vocabulary = 257 + 12;
    const Tokenizer tokenizer = trained(options, texts);
    const auto& spec = tokenizer.spec();
    std::vector<std::string> got;
    for (const auto& [left, right] : spec.merges) got.push_back(spec.vocabulary[left] + " " + spec.vocabulary[right]);
    EXPECT_EQ(got, plain_training(words, 12, {spec.vocabulary.begin(), spec.vocabulary.begin() + 257}));
  }
}

// There are more pairs than the trainer's table has room for at first. Merges are replayed word by word, and some are
// compared with the counts of all pairs at that point.
TEST(Train, ManyPairsAreCountedAsFewAre) {
  std::mt19937_64 random(3);
  std::vector<std::string> texts;
  while (texts.size() < 12000) {
    std::string word;
    for (int n = 0; n < 9; ++n) word.push_back(static_cast<char>('a' + random() % 26));
    if (std::adjacent_find(word.begin(), word.end()) == word.end()) texts.push_back(word);
  }
  TrainOptions options;
  constexpr std::uint32_t kMerges = 700, kBytes = 257;
  options.vocabulary = kBytes + kMerges;
  const auto spec = trained(options, texts).spec();
  ASSERT_EQ(spec.merges.size(), kMerges);
  std::map<std::string, std::uint32_t> ids;
  for (std::uint32_t i = 0; i < kBytes; ++i) ids[spec.vocabulary[i]] = i;
  std::vector<std::vector<std::uint32_t>> words;
  for (const std::string& text : texts) {
    auto& word = words.emplace_back();
    for (const char c : text) word.push_back(ids.at(std::string(1, c)));
  }
  std::set<std::uint64_t> pairs;
  for (std::uint32_t m = 0; m < kMerges; ++m) {
    const std::uint32_t left = spec.merges[m].first, right = spec.merges[m].second;
    const bool counts_all = m % 100 == 99;
    std::map<std::uint64_t, int> counts;
    for (auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (counts_all) ++counts[std::uint64_t{word[i]} << 32 | word[i + 1]];
    for (const auto& [pair, count] : counts) {
      EXPECT_LE(count, counts[std::uint64_t{left} << 32 | right]) << "merge " << m;
      pairs.insert(pair);
    }
    for (auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] = kBytes + m;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  EXPECT_GT(pairs.size(), std::size_t{1} << 15) << "the table has not grown";
}

TEST(Train, ThreadsAndOrderDoNotMatter) {
  auto texts = corpus();
  TrainOptions options;
  options.vocabulary = 300;
  options.threads = 1;
  const std::string first = trained(options, texts).json();
  options.threads = 4;
  EXPECT_EQ(trained(options, texts).json(), first);
  std::shuffle(texts.begin(), texts.end(), std::mt19937_64(1));
  EXPECT_EQ(trained(options, texts).json(), first);
}

TEST(Train, ShapesRoundTrip) {
  for (const char* shape : {"gpt2", "llama3"}) {
    TrainOptions options;
    options.shape = shape;
    options.vocabulary = 600;
    options.special_tokens = {"<|begin_of_text|>", "<|end_of_text|>"};
    options.bos = "<|begin_of_text|>";
    const Tokenizer tokenizer = trained(options, corpus());
    EXPECT_EQ(tokenizer.vocab_size(), 600u);
    EXPECT_EQ(tokenizer.bos_id(), 0u);
    EXPECT_EQ(tokenizer.eos_id(), 1u);
    EXPECT_EQ(tokenizer.encode("", {.add_template = true}), std::vector<TokenId>{0});
    const Tokenizer again = Tokenizer::parse(tokenizer.json(), "again");
    EXPECT_EQ(again.fingerprint(), tokenizer.fingerprint());
    for (const std::string& text : corpus()) EXPECT_EQ(again.decode(again.encode(text)), text);
  }
}

// Text full of a special token's characters must not produce the token.
TEST(Train, TextCannotMakeASpecialToken) {
  TrainOptions options;
  options.vocabulary = 300;
  options.special_tokens = {"stop"};
  const Tokenizer tokenizer = trained(options, {"stop stop stop stop", "stop", "stop"});
  for (const TokenId id : tokenizer.encode("stop")) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_EQ(tokenizer.encode("stop", {.allow_special = true}), std::vector<TokenId>{0});
}

TEST(Train, PairsThatRunOutEndIt) {
  TrainOptions options;
  options.vocabulary = 5000;
  EXPECT_EQ(trained(options, {"abc abc"}).vocab_size(), 257u + 2u + 1u - 1u);  // ab, abc
  options.min_frequency = 1;
  EXPECT_GT(trained(options, {"abc abc"}).vocab_size(), 259u);
}

TEST(Train, RefusesWrongOptions) {
  const GoldenMessages golden;
  const auto refused = [](auto&& change) {
    TrainOptions options;
    change(options);
    EXPECT_NOTED(Trainer{options}, UsageError);
  };
  refused([](TrainOptions& o) { o.vocabulary = 256; });
  refused([](TrainOptions& o) { o.vocabulary = 1u << 30; });
  refused([](TrainOptions& o) { o.shape = "bert"; });
  refused([](TrainOptions& o) { o.special_tokens = {"a", "bb"}; });
  refused([](TrainOptions& o) { o.special_tokens = {"bb", "bb"}; });
  refused([](TrainOptions& o) { o.special_tokens = {""}; });
  refused([](TrainOptions& o) { o.special_tokens = {"\xff\xff"}; });
  refused([](TrainOptions& o) { o.bos = "<none>"; });
  EXPECT_NOTED(Trainer(TrainOptions{}).train(), UsageError);
}

// Words with the same slot at the end of the table, and more words than the table's initial size.
TEST(WordCounts, FindsEveryWordAgain) {
  WordCounts counts, other;
  std::vector<std::string> last;
  for (int i = 0; last.size() < 5; ++i) {
    const std::string word = "w" + std::to_string(i);
    if ((XXH3_64bits(word.data(), word.size()) & 4095) == 4095) last.push_back(word);
  }
  for (int round = 0; round < 2; ++round)
    for (const std::string& word : last) counts.add(word, 3);
  ASSERT_EQ(counts.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(counts.word(i), last[i]);
    EXPECT_EQ(counts.count(i), 6u);
  }
  for (int i = 0; i < 20000; ++i) other.add(std::to_string(i), 2);
  counts.merge(other);
  counts.merge(other);
  other.merge(counts);
  ASSERT_EQ(counts.size(), 20005u);
  ASSERT_EQ(other.size(), 20005u);
  for (std::size_t i = 0; i < 20000; ++i) {
    EXPECT_EQ(other.word(i), std::to_string(i));
    EXPECT_EQ(other.count(i), 6u);
    EXPECT_EQ(counts.word(i + 5), std::to_string(i));
    EXPECT_EQ(counts.count(i + 5), 4u);
  }
}

}  // namespace
}  // namespace molen::data
