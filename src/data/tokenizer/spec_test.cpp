// Files that must be refused: each is a changed good file, and the error names the file and the key.
#include "data/tokenizer/spec.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

using Change = std::function<void(Json&)>;

std::string error_of(const std::string& text) {
  try {
    Tokenizer::parse(text, "file.json");
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

void expect_refused(const char* base, const char* key, const Change& change) {
  Json root = read_json(std::string("tests/golden/tokenizer/") + base + ".json");
  change(root);
  const std::string error = error_of(root.dump());
  EXPECT_NE(error.find("file.json"), std::string::npos) << key << ": " << error;
  EXPECT_NE(error.find(key), std::string::npos) << error;
}

TEST(Spec, RefusesWhatItCannotHonour) {
  const GoldenMessages golden;
  const auto gpt2 = [](const char* key, const Change& change) { expect_refused("gpt2", key, change); };
  gpt2("normalizer", [](Json& j) { j["normalizer"] = {{"type", "NFC"}}; });
  gpt2("truncation", [](Json& j) { j["truncation"] = {{"max_length", 5}}; });
  gpt2("padding", [](Json& j) { j["padding"] = Json::object(); });
  gpt2("dropout", [](Json& j) { j["model"]["dropout"] = 0.1; });
  gpt2("byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; });
  gpt2("Unigram", [](Json& j) { j["model"]["type"] = "Unigram"; });
  gpt2("end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  gpt2("Whitespace", [](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; });
  gpt2("use_regex", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; });
  gpt2("pre_tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; });
  gpt2("decoder", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; });
  gpt2("decoder", [](Json& j) { j.erase("decoder"); });
  gpt2("post_processor", [](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; });
  const auto llama3 = [](const char* key, const Change& change) { expect_refused("llama3", key, change); };
  const auto split = [](Json& j) -> Json& { return j["pre_tokenizer"]["pretokenizers"][0]; };
  llama3("Isolated", [&](Json& j) { split(j)["behavior"] = "Removed"; });
  llama3("inverted", [&](Json& j) { split(j)["invert"] = true; });
  llama3("Regex", [&](Json& j) { split(j)["pattern"] = {{"String", " "}}; });
  llama3("pattern", [&](Json& j) { split(j)["pattern"]["Regex"] = "(?<=a)b"; });
  llama3("patterns in a row", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; });
  llama3("patterns in a row", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); });
  llama3("A once", [](Json& j) { j["post_processor"]["processors"][1]["single"].erase(1); });
  llama3("no token",
         [](Json& j) { j["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {99999}; });
}

// As in tokenizers: a ByteLevel without the key puts a space before the first word.
TEST(Spec, ASpaceComesFirstUnlessTheFileSaysOtherwise) {
  for (const std::string base : {"gpt2", "llama3"}) {
    Json root = read_json("tests/golden/tokenizer/" + base + ".json");
    Json& bytes = base == "gpt2" ? root["pre_tokenizer"] : root["pre_tokenizer"]["pretokenizers"][1];
    bytes["add_prefix_space"] = false;
    EXPECT_FALSE(Tokenizer::parse(root.dump(), "t.json").spec().add_prefix_space) << base;
    bytes.erase("add_prefix_space");
    EXPECT_TRUE(Tokenizer::parse(root.dump(), "t.json").spec().add_prefix_space) << base;
  }
}

TEST(Spec, RefusesInconsistentVocabularies) {
  const GoldenMessages golden;
  const auto refused = [](const char* key, const Change& change) { expect_refused("gpt2", key, change); };
  refused("model.vocab", [](Json& j) { j["model"]["vocab"] = Json::object(); });
  refused("byte 0x61", [](Json& j) {
    j["model"]["vocab"].erase("a");
    j["model"]["merges"] = Json::array();
  });
  refused("id 5", [](Json& j) { j["model"]["vocab"]["zzz"] = 5; });
  refused("-1", [](Json& j) { j["model"]["vocab"]["zzz"] = -1; });
  refused("1.5", [](Json& j) { j["model"]["vocab"]["zzz"] = 1.5; });
  refused("4294967296", [](Json& j) { j["model"]["vocab"]["zzz"] = 4294967296; });
  refused("\"7\"", [](Json& j) { j["model"]["vocab"]["zzz"] = "7"; });
  refused("merge 0", [](Json& j) { j["model"]["merges"][0] = {"qqq", "a"}; });
  refused("merge 0", [](Json& j) { j["model"]["merges"][0] = "ab"; });
  refused("merge 0", [](Json& j) { j["model"]["merges"][0] = "a b c"; });
  refused("merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", "b", "c"}; });
  refused("merge 0", [](Json& j) { j["model"]["merges"][0] = 3; });
  refused("appears twice", [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); });
  refused("merges", [](Json& j) { j["model"]["merges"] = 1; });
  refused("model", [](Json& j) { j.erase("model"); });
  refused("has id 5", [](Json& j) { j["added_tokens"][0]["id"] = 5; });
  refused("appears twice", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); });
  refused("empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; });
  refused("content", [](Json& j) { j["added_tokens"][0].erase("content"); });
  refused("special", [](Json& j) { j["added_tokens"][0]["special"] = "yes"; });
  // Ordinary text must not be able to produce a special token.
  refused("special token", [](Json& j) {
    auto& vocabulary = j["model"]["vocab"];
    const std::string made =
        j["model"]["merges"][0][0].get<std::string>() + j["model"]["merges"][0][1].get<std::string>();
    Json token = j["added_tokens"][0];
    token["content"] = made;
    token["id"] = vocabulary[made];
    j["added_tokens"].push_back(token);
  });
}

TEST(Spec, DecodersAndTemplatesOfOneStepAreRead) {
  const GoldenMessages golden;
  const auto with = [](const char* base, const Change& change) {
    Json root = read_json(std::string("tests/golden/tokenizer/") + base + ".json");
    change(root);
    return error_of(root.dump());
  };
  const auto sequence = [](int count, const char* type) -> Change {
    return [=](Json& j) {
      Json decoders = Json::array();
      for (int i = 0; i < count; ++i) decoders.push_back({{"type", type}});
      j["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    };
  };
  EXPECT_EQ(with("gpt2", sequence(1, "ByteLevel")), "");
  EXPECT_NE(with("gpt2", sequence(0, "ByteLevel")), "");
  EXPECT_NE(with("gpt2", sequence(2, "ByteLevel")), "");
  EXPECT_NE(with("gpt2", sequence(1, "Fuse")), "");
  const auto single = [](const std::vector<const char*>& names) -> Change {
    return [=](Json& j) {
      Json& pieces = j["post_processor"]["processors"][1]["single"];
      pieces = Json::array();
      for (const char* name : names) pieces.push_back({{"Sequence", {{"id", name}, {"type_id", 0}}}});
    };
  };
  EXPECT_EQ(with("llama3", single({"A"})), "");
  for (const auto& wrong : std::vector<std::vector<const char*>>{{"B"}, {"A", "A"}, {"A", "B"}, {}})
    EXPECT_NE(with("llama3", single(wrong)), "");
}

TEST(Spec, RefusesBrokenFiles) {
  const GoldenMessages golden;
  for (const char* text : {"", "{", "[]", "null", "{}", "{\"model\": 1}", "{\"model\":{},\"model\":{}}", "\xff"})
    EXPECT_NE(error_of(text), "") << text;
  EXPECT_NOTED(Tokenizer::load("tests/golden/tokenizer/none.json"), UsageError);
  EXPECT_NE(error_of(std::string(100000, '[')), "");
}

TEST(Spec, HostileFilesTakeLittle) {
  const GoldenMessages golden;
  // One id near 2^24 would take half a gigabyte of empty entries.
  Json holed = read_json("tests/golden/tokenizer/gpt2.json");
  holed["model"]["vocab"]["hole"] = (1 << 24) - 1;
  const std::string with_hole = holed.dump();
  ASSERT_NE(bounded("an id near 2^24 behind a hole", [&] { Tokenizer::parse(with_hole, "file.json"); }), "");
  expect_refused("gpt2", "stand for nothing", [](Json& j) { j["model"]["vocab"]["hole"] = (1 << 24) - 1; });
  expect_refused("gpt2", "longer than 512 bytes", [](Json& j) {
    Json token = j["added_tokens"][0];
    token["content"] = std::string(60000, 'x');
    token["id"] = j["model"]["vocab"].size();
    j["added_tokens"].push_back(token);
  });
  // Many tokens with a common beginning, and a text that nearly matches one of them at every byte.
  Json root = read_json("tests/golden/tokenizer/gpt2.json");
  Json tokens = Json::array();
  std::size_t next = root["model"]["vocab"].size();
  for (int i = 0; i < 5000; ++i) {
    Json token = root["added_tokens"][0];
    token["content"] = std::string(500, 'a') + std::to_string(i);
    token["id"] = next++;
    tokens.push_back(token);
  }
  root["added_tokens"] = tokens;
  const std::string text = root.dump();
  const Tokenizer tokenizer = Tokenizer::parse(text, "file.json");
  EXPECT_EQ(bounded("5,000 added tokens of 500 bytes that begin alike", [&] { Tokenizer::parse(text, "file.json"); }),
            "");
  EXPECT_EQ(bounded("a text that is nearly one of them everywhere",
                    [&] {
                      tokenizer.encode(std::string(20000, 'a'), {true, true});
                    }),
            "");
  EXPECT_EQ(tokenizer.encode(std::string(500, 'a') + "4999", {true, false}).size(), 1u) << "the longest, not 499";
}

// At most 64 tokens surround a text, before and after it together.
TEST(Spec, TokensAroundATextAreFew) {
  const auto around = [](int before, int after) {
    Json root = read_json("tests/golden/tokenizer/llama3.json");
    Json& processor = root["post_processor"]["processors"][1];
    const Json token = {{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}};
    Json single = Json::array();
    for (int i = 0; i < before; ++i) single.push_back(token);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    for (int i = 0; i < after; ++i) single.push_back(token);
    processor["single"] = single;
    return error_of(root.dump());
  };
  EXPECT_EQ(around(64, 0), "");
  EXPECT_EQ(around(32, 32), "");
  EXPECT_EQ(around(0, 64), "");
  for (const auto& [before, after] : {std::pair(65, 0), {33, 32}, {0, 65}, {40, 40}})
    EXPECT_EQ(around(before, after), "file.json: post_processor: more than 64 tokens around a text")
        << before << " " << after;
}

// A file with any single damage is refused or gives a tokenizer that still works; nothing crashes.
TEST(Spec, SurvivesRandomDamage) {
  const std::string good = read_file("tests/golden/tokenizer/llama3.json");
  std::mt19937_64 random(5);
  int loaded = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = good;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, random() % 40);
      }
    }
    try {
      const Tokenizer tokenizer = Tokenizer::parse(text, "damaged");
      tokenizer.encode("The quick brown fox, 12345 times.", {true, true});
      ++loaded;
    } catch (const UsageError&) {
    }
  }
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace molen::data
