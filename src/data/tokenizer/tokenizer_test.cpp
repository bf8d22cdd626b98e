// Tests golden ids of Hugging Face (tests/golden/tokenizer), and properties: round trip, threads, special tokens.
#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/test_golden.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/unicode.h"

namespace molen::data {
namespace {

const fs::path kGolden = "tests/golden/tokenizer";
const char* const kModels[] = {"gpt2", "gpt2_strings", "gpt2_added", "llama3", "cased"};

Tokenizer load(const std::string& name) {
  return Tokenizer::load(kGolden / (name + ".json"));
}

// Random text that reaches every branch of the splitters, sometimes with broken UTF-8.
std::string random_text(std::mt19937_64& random, int pieces, bool broken) {
  static const char* const kPieces[] = {"'s",
                                        "'LL",
                                        "'\xc5\xbf",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "the",
                                        " de",
                                        "W",
                                        "\xc3\xa9",
                                        "1",
                                        "234",
                                        "\xc2\xb2",
                                        ".",
                                        "!?",
                                        "_",
                                        "\xf0\x9f\x98\x80",
                                        "\xe2\x80\x8d",
                                        "\xcc\x81",
                                        "<|endoftext|>",
                                        "<pad>",
                                        "Wor"};
  std::string text;
  for (int i = 0; i < pieces; ++i) {
    if (broken && random() % 7 == 0) {
      text.push_back(static_cast<char>(random()));
    } else if (random() % 9 == 0) {
      std::uint32_t c = static_cast<std::uint32_t>(random() % 0x110000);
      if (c >= 0xd800 && c < 0xe000) c = 0xfffd;
      append_utf8(text, c);
    } else {
      text += kPieces[random() % std::size(kPieces)];
    }
  }
  return text;
}

std::vector<TokenId> ids_of(const Json& array) {
  return array.get<std::vector<TokenId>>();
}

TEST(Tokenizer, GivesTheIdsOfHuggingFace) {
  for (const char* name : kModels) {
    const Tokenizer tokenizer = load(name);
    const Json golden = read_json(kGolden / (std::string(name) + ".golden.json"));
    ASSERT_GT(golden.at("cases").size(), 30u);
    for (const Json& item : golden.at("cases")) {
      const auto text = item.at("text").get<std::string>();
      EXPECT_EQ(tokenizer.encode(text), ids_of(item.at("ids"))) << name << ": " << item.at("text").dump();
      EXPECT_EQ(tokenizer.encode(text, {.allow_special = true, .add_template = true}), ids_of(item.at("special")))
          << name << ": " << item.at("text").dump();
    }
  }
}

TEST(Tokenizer, DecodesWhatItEncodes) {
  for (const char* name : {"gpt2", "gpt2_strings", "llama3"}) {
    const Tokenizer tokenizer = load(name);
    rc::check("decode(encode(x)) == x", [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      const std::string text = random_text(random, 30, false);
      RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
      RC_ASSERT(tokenizer.decode(tokenizer.encode(text, {.allow_special = true})) == text);
    });
  }
}

TEST(Tokenizer, BrokenUtf8CountsAsReplacementCharacters) {
  for (const char* name : kModels) {
    const Tokenizer tokenizer = load(name);
    rc::check("encode(x) == encode(repaired x)", [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      const std::string text = random_text(random, 30, true);
      RC_ASSERT(tokenizer.encode(text) == tokenizer.encode(replace_invalid_utf8(text)));
    });
  }
}

TEST(Tokenizer, OrdinaryTextNeverGivesSpecialTokens) {
  for (const char* name : kModels) {
    const Tokenizer tokenizer = load(name);
    rc::check("no special id without allow_special", [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      for (const TokenId id : tokenizer.encode(random_text(random, 40, true))) RC_ASSERT(!tokenizer.is_special(id));
    });
  }
  const Tokenizer gpt2 = load("gpt2");
  EXPECT_EQ(gpt2.encode("<|endoftext|>", {.allow_special = true}), std::vector<TokenId>{*gpt2.eos_id()});
  EXPECT_GT(gpt2.encode("<|endoftext|>").size(), 1u);
}

TEST(Tokenizer, ThreadsDoNotMatter) {
  const Tokenizer tokenizer = load("llama3");
  std::mt19937_64 random(7);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(random_text(random, i, true));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto one = tokenizer.encode_batch(views, {}, 1);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(tokenizer.encode_batch(views, {}, threads), one);
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(Tokenizer(tokenizer).encode(texts[i]), one[i]);
}

// The second encoding of a word comes from the cache, wherever the word lies in its buffer.
TEST(Tokenizer, TheCacheChangesNothing) {
  const Tokenizer tokenizer = load("gpt2");
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string text = random_text(random, 20, false);
    text += std::string(random() % 80, static_cast<char>('a' + random() % 26));
    const std::vector<TokenId> fresh = load("gpt2").encode(text);
    EXPECT_EQ(tokenizer.encode(text), fresh);
    EXPECT_EQ(tokenizer.encode(text), fresh);
    if (round == 20) round = 180;  // loading is the slow part
  }
}

// 1 MB in one piece takes the long path in n log n time; long and short path agree where both apply.
TEST(Tokenizer, OnePieceOfAMegabyte) {
  const Tokenizer tokenizer = load("gpt2");
  for (const char* unit : {"a", "ab", "\xe6\x97\xa5", " "}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, SavesWhatItLoaded) {
  for (const char* name : kModels) {
    const Tokenizer tokenizer = load(name);
    const Tokenizer again = Tokenizer::parse(tokenizer.json(), "saved");
    EXPECT_EQ(again.fingerprint(), tokenizer.fingerprint()) << name;
    EXPECT_EQ(again.json(), tokenizer.json()) << name;
    EXPECT_EQ(tokenizer.fingerprint().size(), 64u);
  }
  EXPECT_EQ(load("gpt2").fingerprint(), load("gpt2_strings").fingerprint());
  EXPECT_NE(load("gpt2").fingerprint(), load("llama3").fingerprint());
}

// Each property that decides ids changes the fingerprint.
TEST(Tokenizer, FingerprintSeesEveryChange) {
  const TokenizerSpec base = load("gpt2_added").spec();
  const std::string first = Tokenizer(base).fingerprint();
  const auto changed = [&](auto&& change) {
    TokenizerSpec spec = base;
    change(spec);
    return Tokenizer(spec).fingerprint() != first;
  };
  EXPECT_FALSE(changed([](TokenizerSpec&) {}));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.add_prefix_space = !s.add_prefix_space; }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.ignore_merges = true; }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.merges.pop_back(); }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { std::swap(s.merges[0], s.merges[1]); }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.pattern = R"(\p{L}+|\s+)"; }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.added[1].lstrip = !s.added[1].lstrip; }));
  EXPECT_TRUE(changed([](TokenizerSpec& s) { s.before = {0}; }));
}

// Shards record the fingerprint: a changed fingerprint for the same tokenizer would reject them all.
TEST(Tokenizer, FingerprintsStayAsTheyAre) {
  EXPECT_EQ(load("gpt2").fingerprint(), "c547de694318220071c993e12706ca20db41772e5cbef249ca2458a74d07537f");
  EXPECT_EQ(load("gpt2_added").fingerprint(), "aa8954eddf7d18265efe137ba5ed4fb4d21508bb3281719d59b952a4fa19371b");
  EXPECT_EQ(load("llama3").fingerprint(), "bfee1ab3c51669ac6bcd5e4dad708b5019dcac570f276934e8e575262960c49f");
  EXPECT_EQ(load("cased").fingerprint(), "9b0d1e22743691c93e0ccab81462dfd77f130ab04eb2e335b2254ca770d3882a");
}

TEST(Tokenizer, FingerprintsOfAllFlagsDiffer) {
  TokenizerSpec spec = load("gpt2").spec();
  std::set<std::string> seen;
  for (int flags = 0; flags < 32; ++flags) {
    AddedToken& t = spec.added[0];
    t.single_word = flags & 1;
    t.lstrip = flags & 2;
    t.rstrip = flags & 4;
    t.normalized = flags & 8;
    t.special = flags & 16;
    seen.insert(Tokenizer(spec).fingerprint());
  }
  EXPECT_EQ(seen.size(), 32u);
  spec.before = {1, 2};
  seen.insert(Tokenizer(spec).fingerprint());
  spec.before = {1};
  spec.after = {2};
  seen.insert(Tokenizer(spec).fingerprint());
  spec.before = {};
  spec.after = {1, 2};
  seen.insert(Tokenizer(spec).fingerprint());
  EXPECT_EQ(seen.size(), 35u);
}

TEST(Tokenizer, KnowsItsEnds) {
  const GoldenMessages golden;
  EXPECT_EQ(load("gpt2").eos_id(), load("gpt2").find("<|endoftext|>"));
  EXPECT_FALSE(load("gpt2").bos_id());
  const Tokenizer llama3 = load("llama3");
  EXPECT_EQ(llama3.bos_id(), llama3.find("<|begin_of_text|>"));
  EXPECT_EQ(llama3.eos_id(), llama3.find("<|end_of_text|>"));
  EXPECT_EQ(llama3.vocab_size(), *llama3.eos_id() + 1);
  EXPECT_FALSE(llama3.find("no such token"));
  EXPECT_EQ(llama3.token_bytes(*llama3.find(" ")), " ");
  EXPECT_EQ(llama3.decode(std::vector{*llama3.bos_id()}, {.skip_special = true}), "");
  EXPECT_NOTED(llama3.decode(std::vector{llama3.vocab_size()}), UsageError);
  // Decodes each id by itself, up to the last.
  for (TokenId id = 0; id < llama3.vocab_size(); ++id) EXPECT_FALSE(llama3.decode(std::vector{id}).empty()) << id;
}

// Pairs with the same hash slot, in a table that grows while they are inserted.
TEST(MergeTable, FindsEveryPairAfterItHasGrown) {
  MergeTable table;
  constexpr TokenId kPairs = 3000;
  const auto merge_of = [](TokenId i) { return MergeTable::Merge{i, 2 * i + 1}; };
  for (TokenId i = 0; i < kPairs; ++i) EXPECT_TRUE(table.insert(i % 50, i / 50, merge_of(i)));
  for (TokenId i = 0; i < kPairs; ++i) {
    const MergeTable::Merge found = table.find(i % 50, i / 50);
    EXPECT_EQ(found.rank, i);
    EXPECT_EQ(found.result, 2 * i + 1);
    EXPECT_FALSE(table.insert(i % 50, i / 50, merge_of(0)));
  }
  for (TokenId i = 0; i < 100; ++i) EXPECT_EQ(table.find(50 + i, i).rank, MergeTable::kNoRank);
}

// Decodes each id, up to the last, alone and after its neighbour.
TEST(Tokenizer, DecodesEveryId) {
  const GoldenMessages golden;
  for (const char* name : kModels) {
    const Tokenizer tokenizer = load(name);
    const auto size = static_cast<TokenId>(tokenizer.vocab_size());
    std::string all;
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < size; ++id) {
      const std::string one = tokenizer.decode(std::vector<TokenId>(1, id));
      EXPECT_LT(one.size(), 200u) << name << " " << id;
      all += one;
      ids.push_back(id);
    }
    EXPECT_EQ(tokenizer.decode(ids), all) << name;
    EXPECT_FALSE(tokenizer.decode(std::vector<TokenId>(1, size - 1)).empty()) << name;
    EXPECT_NOTED((void)tokenizer.decode(std::vector<TokenId>(1, size)), UsageError) << name;
  }
}

}  // namespace
}  // namespace molen::data
