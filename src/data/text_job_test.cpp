// Tests the records of texts under construction: which are continued, and which are refused.
#include "data/text_job.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/test_filesystem.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

TextRecord record_of(const std::string& text, std::int64_t documents) {
  TextRecord t;
  t.name = "nl-a";
  t.split = "train";
  t.source = "a.jsonl";
  t.package = "pkg";
  t.version = "1.0";
  t.licence = {"MIT", "Expat", "pkg/copyright", std::string(64, 'b'), "DEP-5 Files: *"};
  t.language = "nl";
  t.counts.documents = documents;
  t.counts.bytes = 11;
  t.counts.blocks_repeated = 12;
  t.counts.blocks_foreign = 13;
  t.counts.addresses = 14;
  t.counts.dropped = {{"short", 15}, {"repeated", 16}};
  t.file = {"nl-a.jsonl", static_cast<std::int64_t>(text.size()), sha256_hex(text)};
  return t;
}

std::string state_reason(const Json& json) {
  try {
    EXPECT_EQ(to_json(text_record_from_json(json, "t.json")), json);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(TextRecord, IsReadAsItWasWritten) {
  const Json json = to_json(record_of("x", 3));
  EXPECT_EQ(state_reason(json), "");
  const TextRecord t = text_record_from_json(json, "t.json");
  EXPECT_EQ(t.name, "nl-a");
  EXPECT_EQ(t.split, "train");
  EXPECT_EQ(t.source, "a.jsonl");
  EXPECT_EQ(t.package, "pkg");
  EXPECT_EQ(t.version, "1.0");
  EXPECT_EQ(t.licence, record_of("x", 3).licence);
  EXPECT_EQ(t.language, "nl");
  EXPECT_EQ(t.counts.documents, 3);
  EXPECT_EQ(t.counts.bytes, 11);
  EXPECT_EQ(t.counts.blocks_repeated, 12);
  EXPECT_EQ(t.counts.blocks_foreign, 13);
  EXPECT_EQ(t.counts.addresses, 14);
  EXPECT_EQ(t.counts.dropped, record_of("x", 3).counts.dropped);
  EXPECT_EQ(t.file.bytes, 1);
  EXPECT_EQ(t.file.sha256, sha256_hex("x"));
}

// Files are removed by these names, so no name may point outside the folder or to another text.
TEST(TextRecord, NamesStayInTheFolder) {
  const auto named = [](const std::string& name, const std::string& path) {
    Json json = to_json(record_of("x", 3));
    json["name"] = name;
    json["file"]["path"] = path;
    return state_reason(json);
  };
  EXPECT_EQ(named("nl-b", "nl-b.jsonl"), "");
  for (const std::string name : {"", "../nl-a", "sub/nl-a", ".nl-a", "/etc/x"})
    EXPECT_EQ(named(name, name + ".jsonl"), "t.json: '" + name + ".jsonl' is not the name of its file");
  EXPECT_EQ(named("nl-b", "nl-a.jsonl"), "t.json: 'nl-a.jsonl' is not the name of its file");
  Json json = to_json(record_of("x", 3));
  json["split"] = "../train";
  EXPECT_EQ(state_reason(json), "t.json: split '../train'");
  json["split"] = "heldout";
  EXPECT_EQ(state_reason(json), "");
  json["dropped"]["other"] = 1;
  EXPECT_EQ(state_reason(json).find("t.json: dropped: "), 0u) << state_reason(json);
  json["dropped"] = {{"short", -1}};
  EXPECT_NE(state_reason(json), "");
}

class TextFolderTest : public ::testing::Test {
 protected:
  TextFolderTest() {
    for (const char* name : {"jobs", "train"}) fs::create_directories(folder_.path() / name);
    write("seen", std::string(32, 's'));
  }
  void write(const std::string& name, const std::string& text) const { write_file_atomic(folder_.path() / name, text); }
  // Returns whether a job that stopped after `text`, of `documents` lines, continues when the file holds `there`.
  bool goes_on(const std::string& text, std::int64_t documents, const std::string& there) const {
    write("train/nl-a.jsonl", there);
    JobState state;
    state.key = "key";
    state.seen = 32;
    state.outputs.push_back(record_of(text, documents));
    const TextFolder texts(folder_.path());
    texts.save(0, state);
    return texts.load(0, "key").has_value();
  }
  TestFolder folder_;

 private:
  UnsyncedFileSystem unsynced_;
  FileSystemOverride instead_{unsynced_};
};

TEST_F(TextFolderTest, AJobIsLoadedAsItWasSaved) {
  JobState state;
  state.key = "key";
  state.done = true;
  state.files = 1;
  state.line = 2;
  state.invalid = 3;
  state.invalid_in_file = 4;
  state.first_invalid = "a.jsonl:7: why";
  state.seen = 32;
  state.outputs.push_back(record_of("text\n", 1));
  write("train/nl-a.jsonl", "text\n");
  const TextFolder texts(folder_.path());
  texts.save(5, state);
  const auto loaded = texts.load(5, "key");
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(loaded->done);
  EXPECT_EQ(loaded->files, 1);
  EXPECT_EQ(loaded->line, 2);
  EXPECT_EQ(loaded->invalid, 3);
  EXPECT_EQ(loaded->invalid_in_file, 4);
  EXPECT_EQ(loaded->first_invalid, "a.jsonl:7: why");
  EXPECT_EQ(loaded->seen, 32);
  ASSERT_EQ(loaded->outputs.size(), 1u);
  EXPECT_EQ(loaded->outputs[0].counts.documents, 1);
  EXPECT_FALSE(texts.load(5, "other"));
  EXPECT_FALSE(texts.load(4, "key"));
  // A finished job's file must have the very same bytes, and `seen` must be complete.
  write("train/nl-a.jsonl", "test\n");
  EXPECT_FALSE(texts.load(5, "key"));
  write("train/nl-a.jsonl", "text\n");
  EXPECT_TRUE(texts.load(5, "key"));
  write("seen", std::string(31, 's'));
  EXPECT_FALSE(texts.load(5, "key"));
  fs::remove(folder_.path() / "seen");
  EXPECT_FALSE(texts.load(5, "key"));
}

// Text that ends in a partial line, or has fewer lines than were written, lost data in a power cut, so it is prepared
// again.
TEST_F(TextFolderTest, OnlyWholeLinesAreGoneOnFrom) {
  EXPECT_TRUE(goes_on("a\nb\n", 2, "a\nb\n"));
  EXPECT_TRUE(goes_on("a\nb\n", 2, "a\nb\ntorn")) << "what was written behind it is cut off";
  EXPECT_TRUE(goes_on("", 0, ""));
  EXPECT_FALSE(goes_on("a\nb\n", 2, "a\nb")) << "too short";
  EXPECT_FALSE(goes_on("a\nb\n", 2, "abc\n")) << "one line of two";
  EXPECT_FALSE(goes_on("a\nb\n", 1, "a\nb\n")) << "one line more";
  EXPECT_FALSE(goes_on("a\nbc", 1, "a\nbc")) << "half a line";
  EXPECT_FALSE(goes_on("a\nb\n", 2, std::string("a\n\0\n", 4))) << "a hole";
  // More than one read's worth of text.
  std::string many;
  for (int i = 0; i < 400000; ++i) many += "1234\n";
  EXPECT_TRUE(goes_on(many, 400000, many));
  EXPECT_FALSE(goes_on(many, 399999, many));
}

}  // namespace
}  // namespace molen::data
