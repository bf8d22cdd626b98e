#include "data/manifest.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/test_golden.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

Manifest sample() {
  const std::string hash(64, 'a');
  return {"train",
          {"fp", 300, 0},
          {{"nl-help",
            "demo",
            "libreoffice-help-nl",
            "4:7.4",
            {"MPL-2.0", "MPL-2.0", "copyright", hash, "DEP-5 Files: *"},
            "nl",
            2,
            30,
            90,
            {"nl-help.bin", 60, hash},
            {"nl-help.idx", 82, hash}}}};
}

std::string manifest_reason(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, ParseOfFormatIsIdentity) {
  EXPECT_EQ(parse_manifest(format_manifest(sample()), "x"), sample());
}

TEST(Manifest, DamageNamesFileAndKey) {
  const GoldenMessages golden;
  const std::string good = format_manifest(sample());
  EXPECT_EQ(manifest_reason(good), "");
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& part) {
    EXPECT_EQ(manifest_reason(replaced(good, from, to)), "m.json: " + part);
  };
  expect("\"tokens\": 30", "\"tokens\": -30", "shards[0]: shard 'nl-help': 'tokens' is not a count");
  expect("\"tokens\": 30", "\"tokens\": 3.5", "shards[0]: shard 'nl-help': 'tokens' is not a count");
  expect("\"tokens\": 30", "\"tokens\": 99999999999999999999", "shards[0]: shard 'nl-help': 'tokens' is not a count");
  expect("\"tokens\": 30", "\"toknes\": 30", "shards[0]: unknown key 'toknes'; did you mean 'tokens'?");
  expect("\"tokens\": 30,", "", "shards[0]: shard 'nl-help': no 'tokens'");
  expect("\"version\": 1", "\"version\": 2", "version 2, only 1 is known");
  expect("molen-shards", "other", "format 'other', expected 'molen-shards'");
  expect("\"vocabulary\": 300", "\"vocabulary\": 0", "tokenizer: a vocabulary of 0 entries is impossible");
  expect("\"end_of_text\": 0", "\"end_of_text\": 300",
         "tokenizer: end_of_text 300 is outside the vocabulary of 300 entries");
  expect("\"nl-help\"", "\"../nl-help\"", "shards[0]: '../nl-help' is not a plain file name");
  expect("nl-help.bin", "/etc/passwd", "shards[0]: shard 'nl-help': bin: '/etc/passwd' is not a plain file name");
  expect("nl-help.bin", "other.bin",
         "shards[0]: shard 'nl-help': its files must be called nl-help.bin and nl-help.idx");
  expect(std::string(64, 'a'), "abc",
         "shards[0]: shard 'nl-help': licence: 'abc' is not a SHA-256 in lower-case hexadecimal");
  expect("\"shards\": [", "\"shards\": [3, ", "shards: 3 is not an object");
  expect("\"nl-help\"", "\"" + std::string(201, 'a') + "\"",
         "shards[0]: '" + std::string(201, 'a') + "' is not a plain file name");
  expect("\"nl-help\"", "\".nl\"", "shards[0]: '.nl' is not a plain file name");
  expect("\"nl-help\"", "\"n l\"", "shards[0]: 'n l' is not a plain file name");
  expect("\"nl-help\"", "\"\"", "shards[0]: '' is not a plain file name");
  expect("\"vocabulary\": 300", "\"vocabulary\": 2147483648",
         "tokenizer: a vocabulary of 2147483648 entries is impossible");
  expect("nl-help.idx", "other.idx",
         "shards[0]: shard 'nl-help': its files must be called nl-help.bin and nl-help.idx");
  EXPECT_NE(manifest_reason("[]").find("not an object"), std::string::npos);
  EXPECT_NE(manifest_reason("{").find("not valid JSON"), std::string::npos);
  Manifest twice = sample();
  twice.shards.push_back(twice.shards[0]);
  EXPECT_NE(manifest_reason(format_manifest(twice)).find("appears twice"), std::string::npos);
}

TEST(Manifest, TokenizerMustMatch) {
  const GoldenMessages golden;
  EXPECT_NO_THROW(check_tokenizer(sample(), "x", "fp", 300));
  EXPECT_NO_THROW(check_tokenizer(sample(), "x", "", 512));
  const auto why = [&](const char* fingerprint, std::int64_t vocabulary) -> std::string {
    try {
      check_tokenizer(sample(), "x", fingerprint, vocabulary);
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
    return "";
  };
  EXPECT_EQ(why("other", 300),
            "x: the shards were made with tokenizer fp, but data.tokenizer is other: use the same tokenizer, or run "
            "`molen data prepare` again with this one");
  EXPECT_EQ(why("fp", 299),
            "x: the shards hold token ids up to 299, but the model's vocabulary has 299 entries: set model.vocabulary "
            "to at least 300");
}

TEST(Manifest, MissingFolderSaysWhatToDo) {
  const GoldenMessages golden;
  const TestFolder folder;
  const std::string path = folder.path().string();
  const auto why = [&] {
    try {
      read_manifest(path);
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), no_manifest(path));
      return GoldenMessages::note(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why(), path + ": no manifest.json there; `molen data prepare` writes shards together with their manifest");
  write_test_shards(folder.path() / "heldout", {{"a", "nl", {{1, 0}}}}, 10);
  EXPECT_EQ(why(), path + ": no manifest.json there; " + path + "/heldout has its own: name that");
  write_test_shards(folder.path() / "train", {{"a", "nl", {{1, 0}}}}, 10);
  EXPECT_EQ(why(), path + ": no manifest.json there; " + path + "/train and " + path +
                       "/heldout have theirs: name one of them");
  EXPECT_EQ(no_manifest(folder.path() / "none"), path + "/none: there is nothing of this name");
  EXPECT_EQ(no_manifest(folder.path() / "train"), "");
  EXPECT_EQ(no_manifest(folder.path() / "train/manifest.json"), "");
  EXPECT_EQ(read_manifest(folder.path() / "train/manifest.json"), read_manifest(folder.path() / "train"));
  EXPECT_EQ(manifest_folder(folder.path() / "train/manifest.json"), folder.path() / "train");
  EXPECT_EQ(manifest_folder(folder.path() / "train"), folder.path() / "train");
}

}  // namespace
}  // namespace molen::data
