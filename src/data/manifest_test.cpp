#include "data/manifest.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
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

std::string reason(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const UsageError& error) {
    return error.what();
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
  const std::string good = format_manifest(sample());
  EXPECT_EQ(reason(good), "");
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& part) {
    EXPECT_NE(reason(replaced(good, from, to)).find(part), std::string::npos)
        << to << " -> " << reason(replaced(good, from, to));
  };
  expect("\"tokens\": 30", "\"tokens\": -30", "'tokens' is not a count");
  expect("\"tokens\": 30", "\"tokens\": 3.5", "'tokens' is not a count");
  expect("\"tokens\": 30", "\"tokens\": 99999999999999999999", "'tokens' is not a count");
  expect("\"tokens\": 30", "\"toknes\": 30", "did you mean 'tokens'");
  expect("\"tokens\": 30,", "", "no 'tokens'");
  expect("\"version\": 1", "\"version\": 2", "version 2");
  expect("molen-shards", "other", "format 'other'");
  expect("\"vocabulary\": 300", "\"vocabulary\": 0", "impossible");
  expect("\"end_of_text\": 0", "\"end_of_text\": 300", "outside the vocabulary");
  expect("\"nl-help\"", "\"../nl-help\"", "not a plain file name");
  expect("nl-help.bin", "/etc/passwd", "not a plain file name");
  expect("nl-help.bin", "other.bin", "must be called nl-help.bin");
  expect(std::string(64, 'a'), "abc", "SHA-256");
  expect("\"shards\": [", "\"shards\": [3, ", "shards: 3 is not an object");
  EXPECT_NE(reason("[]").find("not an object"), std::string::npos);
  EXPECT_NE(reason("{").find("not valid JSON"), std::string::npos);
  Manifest twice = sample();
  twice.shards.push_back(twice.shards[0]);
  EXPECT_NE(reason(format_manifest(twice)).find("stands twice"), std::string::npos);
}

TEST(Manifest, TokenizerMustMatch) {
  EXPECT_NO_THROW(check_tokenizer(sample(), "x", "fp", 300));
  EXPECT_NO_THROW(check_tokenizer(sample(), "x", "", 512));
  EXPECT_THROW(check_tokenizer(sample(), "x", "other", 300), UsageError);
  EXPECT_THROW(check_tokenizer(sample(), "x", "fp", 299), UsageError);
}

TEST(Manifest, MissingFolderSaysWhatToDo) {
  const TestFolder folder;
  try {
    read_manifest(folder.path());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("molen data prepare"), std::string::npos);
  }
}

}  // namespace
}  // namespace molen::data
