// Tests the whole output of `molen data inspect|verify|prepare|fetch --list`, and the texts of their errors.
#include "data/commands.h"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "data/prepare.h"
#include "data/recipes.h"
#include "data/test_folder.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

class DataCommands : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return folder_.path() / name; }
  // Replaces the path of the test's folder by DIR.
  std::string shown(std::string text) const {
    const std::string path = folder_.path().string();
    for (auto found = text.find(path); found != std::string::npos; found = text.find(path))
      text.replace(found, path.size(), "DIR");
    return text;
  }
  template <class Body>
  std::string reason(Body&& body) const {
    try {
      body();
    } catch (const UsageError& error) {
      return shown(error.what());
    }
    return "";
  }
  std::string inspect(const fs::path& path, bool json = false) const {
    std::ostringstream out;
    EXPECT_EQ(inspect_command({path, json}, out), 0);
    return shown(out.str());
  }
  // Returns the exit status, then the contents of the two streams.
  std::string verify(const VerifyOptions& options) const {
    std::ostringstream out, err;
    const int status = verify_command(options, out, err);
    return shown(fmt::format("{}\n{}{}", status, out.str(), err.str()));
  }
  template <class Change>
  void edit(const fs::path& split, Change&& change) const {
    Manifest manifest = read_manifest(split);
    change(manifest);
    write_file_atomic(split / "manifest.json", format_manifest(manifest));
  }
  // Two languages in training text, one shard without tokens, and held-out text.
  void write_splits() const {
    const std::vector<std::int32_t> page(1500, 7);
    std::vector<std::int32_t> ended = page;
    ended.push_back(0);
    write_test_shards(
        at("s/train"),
        {{"nl-a", "nl", {{1, 2, 0}, {3, 0}}}, {"nl-long", "nl", {ended}}, {"en-b", "en", {{4, 0}}}, {"en-c", "en", {}}},
        70000, "0123456789abcdef0123");
    write_test_shards(at("s/heldout"), {{"nl-h", "nl", {{9, 0}}}}, 10);
    edit(at("s/train"), [](Manifest& m) {
      m.shards[1].text_bytes = 1234567;
      m.shards[1].licence.spdx = "GPL-2.0-or-later";
      m.shards[1].version = "4:7.4-x";
    });
    edit(at("s/heldout"), [](Manifest& m) { m.split = "heldout"; });
  }
  TestFolder folder_;

 private:
  UnsyncedFileSystem unsynced_;
  FileSystemOverride instead_{unsynced_};
};

TEST_F(DataCommands, InspectShowsEverySplit) {
  write_splits();
  EXPECT_EQ(inspect(at("s")),
            "DIR/s/train (train), tokenizer 0123456789abcdef, 70,000 entries\n"
            "shard    language  licence           version  documents  tokens      bytes  bytes/token\n"
            "nl-a     nl        CC0-1.0           1                2       5         20         4.00\n"
            "nl-long  nl        GPL-2.0-or-later  4:7.4-x          1   1,501  1,234,567       822.50\n"
            "en-b     en        CC0-1.0           1                1       2          8         4.00\n"
            "en-c     en        CC0-1.0           1                0       0          0            -\n"
            "all      en                                           1       2          8         4.00\n"
            "all      nl                                           3   1,506  1,234,587       819.78\n"
            "DIR/s/heldout (heldout), tokenizer test, 10 entries\n"
            "shard  language  licence  version  documents  tokens  bytes  bytes/token\n"
            "nl-h   nl        CC0-1.0  1                1       2      8         4.00\n"
            "all    nl                                  1       2      8         4.00\n");
  EXPECT_EQ(inspect(at("s/heldout/manifest.json")), inspect(at("s/heldout")));
  // Without a shard the output is the head alone.
  edit(at("s/heldout"), [](Manifest& m) { m.shards.clear(); });
  EXPECT_EQ(inspect(at("s/heldout")),
            "DIR/s/heldout (heldout), tokenizer test, 10 entries\n"
            "shard  language  licence  version  documents  tokens  bytes  bytes/token\n");
}

TEST_F(DataCommands, InspectAsJson) {
  write_splits();
  Json train = Json::parse(format_manifest(read_manifest(at("s/train"))));
  train["languages"] = {{"en", {{"documents", 1}, {"tokens", 2}, {"text_bytes", 8}}},
                        {"nl", {{"documents", 3}, {"tokens", 1506}, {"text_bytes", 1234587}}}};
  train["path"] = "DIR/s/train";
  Json heldout = Json::parse(format_manifest(read_manifest(at("s/heldout"))));
  heldout["languages"] = {{"nl", {{"documents", 1}, {"tokens", 2}, {"text_bytes", 8}}}};
  heldout["path"] = "DIR/s/heldout";
  EXPECT_EQ(inspect(at("s"), true), Json::array({train, heldout}).dump(1) + "\n");
  EXPECT_EQ(inspect(at("s/heldout"), true), Json::array({heldout}).dump(1) + "\n");
}

TEST_F(DataCommands, PathsWithoutAManifest) {
  const auto why = [&](const char* path) {
    const std::string of_inspect = reason([&] { inspect(at(path)); });
    EXPECT_EQ(reason([&] { verify({at(path), "", false}); }), of_inspect);
    return of_inspect;
  };
  EXPECT_EQ(why("none"), "DIR/none: does not exist");
  fs::create_directories(at("empty/train"));
  EXPECT_EQ(why("empty"),
            "DIR/empty: no manifest.json there; `molen data prepare` writes shards together with their manifest");
}

TEST_F(DataCommands, VerifyOfWhatIsRight) {
  write_splits();
  EXPECT_EQ(verify({at("s"), "", false}), "0\n5 shards, 1,510 tokens: every hash, count and token is right\n");
  EXPECT_EQ(verify({at("s/heldout"), "", true}),
            "0\n{\n \"ok\": true,\n \"shards\": 1,\n \"tokens\": 2,\n \"findings\": []\n}\n");
}

TEST_F(DataCommands, VerifyNamesEachFindingInFull) {
  const auto findings = [&](const std::function<void(Manifest&)>& change) {
    fs::remove_all(at("s"));
    write_test_shards(at("s"), {{"a", "nl", {{1, 2, 0}, {3, 0}, {}}}, {"b", "nl", {{1, 0}, {2, 0}, {5, 0}}}}, 10);
    edit(at("s"), change);
    return verify({at("s"), "", false});
  };
  const std::string one = "1 findings in 2 shards\n";
  EXPECT_EQ(findings([](Manifest& m) { m.shards.pop_back(); }).substr(0, 2), "2\n");
  EXPECT_EQ(findings([](Manifest&) {}), "2\nDIR/s/a: document 2 does not end with the end-of-text token\n" + one);
  const std::string end = "DIR/s/a: document 2 does not end with the end-of-text token\n";
  EXPECT_EQ(findings([](Manifest& m) { m.shards[1].bin.bytes = 13; }),
            "2\n" + end + "DIR/s/b.bin: 12 bytes, its manifest says 13\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest& m) { m.shards[1].idx.sha256 = std::string(64, 'a'); }),
            "2\n" + end + "DIR/s/b.idx: its SHA-256 is not the one in the manifest\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest&) { fs::remove(at("s/b.bin")); }),
            "2\n" + end + "DIR/s/b.bin: missing\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest& m) { m.shards[1].tokens = 7; }),
            "2\n" + end + "DIR/s/b: 3 documents and 6 tokens, its manifest says 3 and 7\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest& m) { m.shards[1].documents = 4; }),
            "2\n" + end + "DIR/s/b: 3 documents and 6 tokens, its manifest says 4 and 6\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest& m) { m.shards[1].licence.spdx = ""; }),
            "2\n" + end + "DIR/s/b: no licence\n2 findings in 2 shards\n");
  EXPECT_EQ(findings([&](Manifest& m) {
              m.shards.erase(m.shards.begin());
              m.tokenizer.vocabulary = 5;
            }),
            "2\nDIR/s/b.bin: token 4 is outside the vocabulary of 5 entries: the shard is damaged or was made with "
            "another tokenizer\nDIR/s/a.bin: not in the manifest\n2 findings in 1 shards\n");
  // The finding names the first document that ends with another token.
  EXPECT_EQ(findings([&](Manifest& m) {
              m.shards.erase(m.shards.begin());
              m.tokenizer.end_of_text = 5;
              fs::remove(at("s/a.bin"));
            }),
            "2\nDIR/s/b: document 0 does not end with the end-of-text token\n1 findings in 1 shards\n");
}

TEST_F(DataCommands, VerifyAgainstATokenizer) {
  write_tokenizer(at("tokenizer.json"));
  const std::string fingerprint = Tokenizer::load(at("tokenizer.json")).fingerprint();
  write_test_shards(at("s"), {{"a", "nl", {{1, 0}}}}, 10);
  const std::string finding = "DIR/s: made with tokenizer test, not with DIR/tokenizer.json (" + fingerprint + ")";
  EXPECT_EQ(verify({at("s"), at("tokenizer.json"), false}), "2\n" + finding + "\n1 findings in 1 shards\n");
  EXPECT_EQ(verify({at("s"), at("tokenizer.json"), true}),
            "2\n{\n \"ok\": false,\n \"shards\": 1,\n \"tokens\": 2,\n \"findings\": [\n  \"" + finding +
                "\"\n ]\n}\n" + finding + "\n");
  write_test_shards(at("s"), {{"a", "nl", {{1, 0}}}}, 10, fingerprint);
  EXPECT_EQ(verify({at("s"), at("tokenizer.json"), false}),
            "0\n1 shards, 2 tokens: every hash, count and token is right\n");
}

// Texts with a repeated line, a short line and an invalid JSON line; tests how `prepare` counts them.
class DataPrepare : public DataCommands {
 protected:
  DataPrepare() {
    const auto line = [](const std::string& text) { return Json{{"text", text}}.dump() + "\n"; };
    const auto zin = [&](int n) {
      return line(fmt::format("Dit is zin {} van de reeks, en die is lang genoeg om een eigen blok te zijn.", n));
    };
    std::string first, second;
    for (int i = 0; i < 20; ++i) first += zin(i);
    second = zin(3) + zin(50) + line("\xc3\xa9\xc3\xa9n") + "{}\n";
    write_file_atomic(at("first.jsonl"), first);
    write_file_atomic(at("second.jsonl"), second);
    options.sources = {at("first.jsonl"), at("second.jsonl")};
    options.output = at("out");
    options.language = "nl";
    options.licence = "CC0-1.0";
  }
  std::string prepare() const {
    std::ostringstream out;
    EXPECT_EQ(prepare_command(options, out, {}), 0);
    return out.str();
  }
  PrepareOptions options;
};

TEST_F(DataPrepare, TableWithoutAndWithTokens) {
  EXPECT_EQ(prepare(),
            "split  language  source        licence  documents  dropped  repeated  foreign  bytes  tokens\n"
            "train  nl        first.jsonl   CC0-1.0         20        0         0        0  1,530       -\n"
            "train  nl        second.jsonl  CC0-1.0          2        2         0        0     83       -\n");
  write_tokenizer(at("tokenizer.json"));
  options.tokenizer = at("tokenizer.json");
  EXPECT_EQ(prepare(),
            "split  language  source        licence  documents  dropped  repeated  foreign  bytes  tokens\n"
            "train  nl        first.jsonl   CC0-1.0         20        0         0        0  1,530   1,550\n"
            "train  nl        second.jsonl  CC0-1.0          2        2         0        0     83      85\n");
}

TEST_F(DataPrepare, AsJson) {
  write_tokenizer(at("tokenizer.json"));
  options.tokenizer = at("tokenizer.json");
  options.json = true;
  const Json json = Json::parse(prepare());
  EXPECT_EQ(json.size(), 2u);
  EXPECT_EQ(json.at("text").dump(1) + "\n", format_text_manifest(read_text_manifest(at("out/text"))));
  EXPECT_EQ(json.at("shards").dump(),
            "[{\"split\":\"train\",\"languages\":{\"nl\":{\"documents\":22,\"tokens\":1635,\"text_bytes\":1613}}}]");
}

TEST_F(DataPrepare, WhatIsWrongIsSaidBeforeAnythingIsWritten) {
  const auto why = [&] { return reason([&] { prepare(); }); };
  options.threads = -1;
  EXPECT_EQ(why(), "--threads -1: must not be negative");
  options.threads = 0;
  options.output = "";
  EXPECT_EQ(why(), "--output is missing: the folder to write to");
  options.output = at("out");
  options.tokenizer = at("none.json");
  EXPECT_NE(why(), "");
  EXPECT_FALSE(fs::exists(at("out")));
  options.tokenizer = "";
  options.sources = {};
  options.output = at("deep/er");
  EXPECT_EQ(why(), "no source given: a folder made by `molen data fetch`, or text files");
  EXPECT_FALSE(fs::exists(at("deep"))) << "no folder stays of a run of which nothing came";
  // A folder that existed before the run stays.
  fs::create_directories(at("deep"));
  EXPECT_NE(why(), "");
  EXPECT_TRUE(fs::exists(at("deep")));
  EXPECT_FALSE(fs::exists(at("deep/er")));
}

// Progress of the text and then of its tokens: the share never falls and ends at one.
TEST_F(DataPrepare, TellsHowFarItIs) {
  write_tokenizer(at("tokenizer.json"));
  options.tokenizer = at("tokenizer.json");
  std::vector<std::tuple<std::string, double, std::string>> told;
  options.at = [&](std::string_view stage, double share, std::string_view doing) {
    const std::string name(stage), of(doing);
    if (!told.empty() && std::get<0>(told.back()) == name) {
      EXPECT_GE(share, std::get<1>(told.back()));
    }
    if (told.empty() || told.back() != std::tuple(name, share, of)) told.emplace_back(name, share, of);
  };
  prepare();
  const auto texts = read_text_manifest(at("out/text")).texts;
  const auto first = static_cast<double>(texts[0].counts.bytes), second = static_cast<double>(texts[1].counts.bytes);
  const double of_first = static_cast<double>(fs::file_size(at("first.jsonl"))),
               of_all = of_first + static_cast<double>(fs::file_size(at("second.jsonl")));
  std::vector<std::tuple<std::string, double, std::string>> tokens, ends;
  for (std::size_t i = 0; i < told.size(); ++i)
    if (std::get<0>(told[i]) == "tokens")
      tokens.push_back(told[i]);
    else if (i + 1 == told.size() || std::get<0>(told[i + 1]) == "tokens" ||
             std::get<2>(told[i]) != std::get<2>(told[i + 1]))
      ends.push_back(told[i]);
  const double after_first = first / (first + second);
  EXPECT_EQ(tokens, (std::vector<std::tuple<std::string, double, std::string>>{{"tokens", 0.0, "nl-first"},
                                                                               {"tokens", after_first, "nl-first"},
                                                                               {"tokens", after_first, "nl-second"},
                                                                               {"tokens", 1.0, "nl-second"}}));
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(std::get<2>(ends[0]), "first");
  EXPECT_DOUBLE_EQ(std::get<1>(ends[0]), of_first / of_all);
  EXPECT_DOUBLE_EQ(std::get<1>(ends[1]), 1.0);
}

TEST_F(DataCommands, TheListOfSets) {
  std::ostringstream out, json;
  EXPECT_EQ(fetch_command({"", "", true, false}, out, {}), 0);
  EXPECT_EQ(out.str(),
            "demo: Dutch and English manuals, 10 MB to download, about 3 million tokens\n"
            "  libreoffice-help-nl\n  libreoffice-help-en-us\n  postgresql-doc-15\n  manpages-nl\n  aptitude-doc-nl\n"
            "  debian-faq-nl\n  debian-reference-en\n"
            "mix: demo plus German, Finnish (mostly English in truth) and Python code, 32 MB\n"
            "  libreoffice-help-nl\n  libreoffice-help-en-us\n  postgresql-doc-15\n  manpages-nl\n  aptitude-doc-nl\n"
            "  debian-faq-nl\n  debian-reference-en\n  libreoffice-help-de\n  libreoffice-help-fi\n  manpages-de\n"
            "  manpages-fi\n  aptitude-doc-fi\n  gnome-user-docs\n  libpython3.11-stdlib\n  libpython3.11-minimal\n");
  EXPECT_EQ(fetch_command({"", "", true, true}, json, {}), 0);
  const Json sets = Json::parse(json.str());
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].size(), 3u);
  EXPECT_EQ(sets[0].at("set"), "demo");
  EXPECT_EQ(sets[0].at("description"), package_set("demo").description);
  EXPECT_EQ(sets[0].at("packages"), package_set("demo").packages);
  EXPECT_EQ(sets[1].at("set"), "mix");
  EXPECT_EQ(reason([&] {
              fetch_command({"demo", "", false, false}, out, {});
            }),
            "--output is missing: the folder to fetch into");
  EXPECT_EQ(reason([&] {
              fetch_command({"dmeo", at("x"), false, false}, out, {});
            }),
            "no package set 'dmeo'; did you mean 'demo'?; `molen data fetch --list` shows them");
  EXPECT_FALSE(fs::exists(at("x")));
}

}  // namespace
}  // namespace molen::data
