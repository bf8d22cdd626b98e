// `molen data` from files and from a fetch folder made by hand (no network): text, shards, inspection, verification.
#include "data/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/baseline.h"
#include "data/dataset.h"
#include "data/fetch.h"
#include "data/jsonl.h"
#include "data/process.h"
#include "data/recipes.h"
#include "data/test_folder.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

// 256 bytes and an end-of-text token: the smallest byte-level tokenizer.
void write_tokenizer(const fs::path& path) {
  Json vocabulary = Json::object();
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string name;
    append_code_point(name, plain ? static_cast<std::uint32_t>(byte) : 256u + static_cast<std::uint32_t>(next++));
    vocabulary[name] = byte;
  }
  const Json json{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", Json::array({{{"id", 256},
                                     {"content", "<|endoftext|>"},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", vocabulary},
        {"merges", Json::array()}}}};
  write_file_atomic(path, json.dump());
}

std::string sentence(const std::string& words, int n) {
  return words + " Nummer " + std::to_string(n) +
         " van de reeks, en dat is een zin die lang genoeg is om een eigen blok te zijn.";
}

class PrepareTest : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return folder_.path() / name; }
  PrepareOptions options(std::vector<fs::path> sources) const {
    PrepareOptions o;
    o.sources = std::move(sources);
    o.output = at("out");
    o.licence = "CC0-1.0";
    return o;
  }
  std::string reason(const PrepareOptions& o) const {
    std::ostringstream out;
    try {
      prepare_command(o, out, {});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  static std::string page(const std::string& body) { return "<html><body>" + body + "</body></html>"; }

  // A fetch folder of two packages, one of them held out.
  void write_fetch_folder() const {
    const fs::path root = at("fetch") / "root";
    const auto put = [&](const std::string& path, const std::string& text) {
      fs::create_directories((root / path).parent_path());
      write_file_atomic(root / path, text);
    };
    std::string dutch, held;
    for (int i = 0; i < 4; ++i)
      dutch += "<p>" + sentence("De eerste tekst staat op de pagina van het pakket.", i) + "</p>";
    held = "<p>" + sentence("De eerste tekst staat op de pagina van het pakket.", 0) + "</p>";
    for (int i = 10; i < 13; ++i)
      held += "<p>" + sentence("Hier staat een andere tekst die voor de toets is.", i) + "</p>";
    const std::string english =
        "<p>This is an English paragraph that has been left in the page by the translators of it.</p>";
    put("aptitude-doc-nl/usr/share/doc/aptitude/html/nl/a.html", page(held));
    put("libreoffice-help-nl/usr/share/libreoffice/help/nl/text/a.html",
        page("<header>menu</header><div id='DisplayArea'>" + dutch + english + "</div>"));
    put("libreoffice-help-nl/usr/share/libreoffice/help/nl/text/b.html",
        page("<div id='DisplayArea'>" + dutch + "</div>"));
    put("libreoffice-help-nl/usr/share/libreoffice/help/nl/text/c.html", page("<div id='DisplayArea'>\xff\xfe</div>"));
    FetchRecord record{"demo", {}};
    for (const std::string package : {"libreoffice-help-nl", "aptitude-doc-nl"}) {
      put(package + "/usr/share/doc/" + package + "/copyright",
          "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nCopyright: "
          "X\nLicense: GPL-2+\n");
      record.packages.push_back({package, "1.0", "all", package + ".deb", 1, std::string(64, 'a'), "",
                                 "2026-01-01T00:00:00Z", licence_of_package(at("fetch"), package)});
    }
    write_file_atomic(at("fetch") / "fetch.json", format_fetch_record(record));
  }
  TestFolder folder_;
};

TEST_F(PrepareTest, PackagesToVerifiedShards) {
  write_fetch_folder();
  write_tokenizer(at("tokenizer.json"));
  PrepareOptions o = options({at("fetch")});
  o.tokenizer = at("tokenizer.json");
  std::ostringstream out;
  std::vector<std::string> steps;
  EXPECT_EQ(prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); }), 0);

  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 2u);
  const TextRecord& train = texts.texts[0];
  EXPECT_EQ(train.split, "train");
  EXPECT_EQ(train.licence.spdx, "GPL-2.0-or-later");
  EXPECT_EQ(train.licence.rule, "DEP-5 Files: *");
  EXPECT_EQ(train.counts.documents, 1);
  EXPECT_EQ(train.counts.blocks_foreign, 1);
  EXPECT_EQ(train.counts.blocks_repeated, 4) << "page b repeats page a";
  EXPECT_EQ(train.counts.dropped.at("not UTF-8"), 1);
  EXPECT_EQ(texts.texts[1].counts.blocks_repeated, 1) << "what training has, held-out text has not";

  const Manifest manifest = read_manifest(at("out") / "train");
  ASSERT_EQ(manifest.shards.size(), 1u);
  EXPECT_EQ(manifest.shards[0].text_bytes, train.counts.bytes);
  EXPECT_EQ(manifest.shards[0].tokens, train.counts.bytes + 1) << "one token a byte, and the end";
  const auto tokenizer = Tokenizer::load(at("tokenizer.json"));
  EXPECT_EQ(manifest.tokenizer.fingerprint, tokenizer.fingerprint());
  const TokenStream stream(at("out") / "train", {"nl"}, {8, 257, tokenizer.fingerprint()});
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.tokens()));
  stream.read(0, tokens);
  EXPECT_EQ(tokens.back(), 256);
  const std::string text = tokenizer.decode(std::vector<TokenId>(tokens.begin(), tokens.end() - 1));
  EXPECT_EQ(text.find("De eerste tekst"), 0u);
  EXPECT_EQ(text.find("English"), std::string::npos);
  EXPECT_EQ(text.find("menu"), std::string::npos);

  std::ostringstream report;
  EXPECT_EQ(verify_command({at("out"), at("tokenizer.json"), false}, report, report), 0) << report.str();
  EXPECT_EQ(inspect_command({at("out"), true}, report), 0);
  for (const Baseline& b : ngram_baselines(at("out"), {3})) EXPECT_GT(b.bits_per_byte, 0.1);

  // Again: nothing is made anew.
  const auto before = fs::last_write_time(at("out") / "train" / "nl-libreoffice-help-nl.bin");
  steps.clear();
  EXPECT_EQ(prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); }), 0);
  EXPECT_EQ(steps, (std::vector<std::string>{"text: unchanged, reused", "train shards: unchanged, reused",
                                             "heldout shards: unchanged, reused"}));
  EXPECT_EQ(fs::last_write_time(at("out") / "train" / "nl-libreoffice-help-nl.bin"), before);
}

TEST_F(PrepareTest, VerifyFindsEveryKindOfDamage) {
  const auto findings = [&](const std::function<void()>& damage) {
    fs::remove_all(at("s"));
    write_test_shards(at("s"), {{"a", "nl", {{1, 2, 0}, {3, 0}}}}, 10);
    damage();
    std::ostringstream out, err;
    EXPECT_EQ(verify_command({at("s"), "", false}, out, err), 2) << err.str();
    EXPECT_EQ(out.str(), "");
    return err.str();
  };
  const auto edit = [&](const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_file(at("s") / file);
    const auto found = text.find(from);
    ASSERT_NE(found, std::string::npos);
    write_file_atomic(at("s") / file, text.replace(found, from.size(), to));
  };
  EXPECT_NE(findings([&] { edit("a.bin", "\x03", "\x04"); }).find("SHA-256"), std::string::npos);
  EXPECT_NE(findings([&] { fs::resize_file(at("s") / "a.bin", 4); }).find("4 bytes"), std::string::npos);
  EXPECT_NE(findings([&] { fs::remove(at("s") / "a.idx"); }).find("missing"), std::string::npos);
  EXPECT_NE(findings([&] { edit("manifest.json", "\"tokens\": 5", "\"tokens\": 6"); }).find("5 tokens"),
            std::string::npos);
  EXPECT_NE(findings([&] {
              edit("manifest.json", "\"vocabulary\": 10", "\"vocabulary\": 3");
            }).find("outside the vocabulary"),
            std::string::npos);
  EXPECT_NE(findings([&] { edit("manifest.json", "\"end_of_text\": 0", "\"end_of_text\": 2"); }).find("end-of-text"),
            std::string::npos);
  EXPECT_NE(findings([&] { write_file_atomic(at("s") / "extra.bin", "x"); }).find("not in the manifest"),
            std::string::npos);
  write_tokenizer(at("tokenizer.json"));
  fs::remove(at("s") / "extra.bin");
  std::ostringstream out, err;
  EXPECT_EQ(verify_command({at("s"), at("tokenizer.json"), true}, out, err), 2);
  EXPECT_NE(err.str().find("made with tokenizer test"), std::string::npos);
  EXPECT_NE(out.str().find("made with tokenizer test"), std::string::npos);
}

TEST_F(PrepareTest, FilesOfEveryForm) {
  fs::create_directories(at("in"));
  write_file_atomic(at("in") / "a.txt", sentence("De tekst van het eerste bestand is in het Nederlands.", 1));
  write_file_atomic(at("in") / "b.jsonl", format_jsonl({sentence("Het tweede bestand van de map.", 2), "id1", ""}) +
                                              "\n" +
                                              format_jsonl({"Only a line of the English text in it.", "", "en"}));
  std::ostringstream out;
  EXPECT_EQ(prepare_command(options({at("in")}), out, {}), 0);
  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 2u);
  EXPECT_EQ(texts.texts[0].language, "en");
  EXPECT_EQ(texts.texts[1].language, "nl");
  EXPECT_EQ(texts.texts[1].counts.documents, 2);
  EXPECT_EQ(texts.texts[1].licence.spdx, "CC0-1.0");
  for (const TextRecord& text : texts.texts)
    EXPECT_EQ(text.file.bytes,
              static_cast<std::int64_t>(fs::file_size(at("out") / "text" / text.split / (text.name + ".jsonl"))))
        << text.name;
}

// Names of shards: letters, digits, - and _ of the file's name stay, all else is a dash.
TEST_F(PrepareTest, NamesComeFromFiles) {
  write_file_atomic(at("a_b-c 7.x.txt"), sentence("De tekst van het bestand is in het Nederlands.", 1));
  std::ostringstream out;
  EXPECT_EQ(prepare_command(options({at("a_b-c 7.x.txt")}), out, {}), 0);
  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 1u);
  EXPECT_NE(texts.texts[0].name.find("a_b-c-7"), std::string::npos) << texts.texts[0].name;
  // A list of texts that is none.
  const fs::path file = at("out") / "text" / "text.json";
  Json json = parse_json(read_file(file), "text");
  for (const Json& wrong : {Json::object(), Json("x"), Json(nullptr)}) {
    json["texts"] = wrong;
    write_file_atomic(file, json.dump());
    EXPECT_THROW(read_text_manifest(at("out") / "text"), UsageError) << wrong;
  }
}

// Shards are made anew where either of the two files that say what they were made from is gone.
TEST_F(PrepareTest, ShardsWithoutTheirRecordsAreMadeAgain) {
  write_tokenizer(at("tokenizer.json"));
  write_file_atomic(at("a.txt"), sentence("De tekst van het bestand is in het Nederlands.", 1));
  PrepareOptions o = options({at("a.txt")});
  o.tokenizer = at("tokenizer.json");
  std::ostringstream out;
  ASSERT_EQ(prepare_command(o, out, {}), 0);
  for (const char* name : {"inputs", "manifest.json"}) {
    fs::remove(at("out") / "train" / name);
    std::vector<std::string> steps;
    EXPECT_EQ(prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); }), 0);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), "train shards: unchanged, reused"), 0) << name;
    EXPECT_TRUE(fs::exists(at("out") / "train" / name));
  }
}

TEST(Recipes, LanguagesOfManualPages) {
  for (const auto& [package, folder, language] : {std::tuple{"manpages-nl", "usr/share/man/nl", "nl"},
                                                  {"manpages-pt-br", "usr/share/man/pt-br", "pt"},
                                                  {"manpages", "usr/share/man", "en"}}) {
    const auto recipes = recipes_of(package);
    ASSERT_EQ(recipes.size(), 1u) << package;
    EXPECT_EQ(recipes[0].folder, folder);
    EXPECT_EQ(recipes[0].language, language);
  }
}

// The name of a special token in a text is text: only molen itself ends a document.
TEST_F(PrepareTest, SpecialTokensInTextAreText) {
  write_tokenizer(at("tokenizer.json"));
  const std::string text = "A page about <|endoftext|> says that it ends the text, which is what this page is about.";
  write_file_atomic(at("a.jsonl"), format_jsonl({text, "", "en"}) + "\n");
  PrepareOptions o = options({at("a.jsonl")});
  o.tokenizer = at("tokenizer.json");
  std::ostringstream out;
  ASSERT_EQ(prepare_command(o, out, {}), 0);
  const auto tokenizer = Tokenizer::load(at("tokenizer.json"));
  const TokenStream stream(at("out") / "train", {"en"}, {8, 257, tokenizer.fingerprint()});
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.tokens()));
  stream.read(0, tokens);
  EXPECT_EQ(tokens.size(), text.size() + 2) << "one token a byte, the end of the line and that of the text";
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 256), 1);
  EXPECT_EQ(tokens.back(), 256);
}

TEST_F(PrepareTest, BadInputGetsOneClearError) {
  write_file_atomic(at("a.jsonl"), "{\"text\":\"x\"}\n{\"txet\":\"y\"}\n");
  EXPECT_NE(reason(options({at("a.jsonl")})).find("a.jsonl:2: no 'text'"), std::string::npos);
  EXPECT_NE(reason(options({at("missing")})).find("does not exist"), std::string::npos);
  EXPECT_NE(reason(options({})).find("no source given"), std::string::npos);
  PrepareOptions o = options({at("a.jsonl")});
  o.licence = "";
  EXPECT_NE(reason(o).find("--licence is missing"), std::string::npos);
  o = options({at("a.jsonl")});
  o.split = "test";
  EXPECT_NE(reason(o).find("--split test"), std::string::npos);
  write_file_atomic(at("b.txt"), "\xff\xfe");
  EXPECT_NE(reason(options({at("b.txt")})).find("no document is left"), std::string::npos);
  write_file_atomic(at("good.jsonl"), "{\"text\":\"a text that is long enough\"}\n");
  o = options({at("good.jsonl")});
  o.licence = "CC0";
  EXPECT_NE(reason(o).find("did you mean 'CC0-1.0'?"), std::string::npos) << reason(o);
  o.licence = "MIT";
  o.tokenizer = at("good.jsonl");
  EXPECT_NE(reason(o), "");
  EXPECT_FALSE(fs::exists(at("out"))) << "nothing is left behind";
  // An earlier result outlives bad input.
  std::ostringstream out;
  o.tokenizer = "";
  EXPECT_EQ(prepare_command(o, out, {}), 0);
  const std::string before = read_file(at("out") / "text" / "text.json");
  EXPECT_NE(reason(options({at("a.jsonl")})), "");
  EXPECT_EQ(read_file(at("out") / "text" / "text.json"), before);
  EXPECT_FALSE(fs::exists(at("out") / "text.part"));
}

TEST_F(PrepareTest, FetchRecordAndSets) {
  write_fetch_folder();
  const FetchRecord record = read_fetch_record(at("fetch"));
  EXPECT_EQ(parse_fetch_record(format_fetch_record(record), "x"), record);
  std::string text = format_fetch_record(record);
  text.replace(text.find("aptitude-doc-nl"), 15, "../titude-doc-n");
  EXPECT_THROW(parse_fetch_record(text, "x"), UsageError);
  std::ostringstream out;
  EXPECT_EQ(fetch_command({"", "", true, false}, out, {}), 0);
  EXPECT_NE(out.str().find("debian-reference-en"), std::string::npos);
  EXPECT_THROW(fetch_command({"dmeo", at("x"), false, false}, out, {}), UsageError);
  EXPECT_THROW(fetch_command({"demo", "", false, false}, out, {}), UsageError);
}

TEST_F(PrepareTest, LicenceBehindALinkAndWithoutAny) {
  const fs::path root = at("f") / "root";
  fs::create_directories(root / "one/usr/share/doc");
  fs::create_directories(root / "two/usr/share/doc/two");
  fs::create_directory_symlink("two", root / "one/usr/share/doc/one");
  write_file_atomic(root / "two/usr/share/doc/two/copyright", "free text");
  const Licence linked = licence_of_package(at("f"), "one");
  EXPECT_EQ(linked.evidence, "two/usr/share/doc/two/copyright");
  EXPECT_EQ(linked.spdx, "LicenseRef-unknown") << "free text is not guessed";
  EXPECT_EQ(linked.evidence_sha256, sha256_hex("free text"));
  EXPECT_EQ(licence_of_package(at("f"), "three").rule, "no copyright file");
}

TEST(Process, OutputAndStatus) {
  EXPECT_EQ(run_process({"sh", "-c", "pwd; exit 3"}, "/").status, 3);
  EXPECT_EQ(run_process({"sh", "-c", "pwd"}, "/").output, "/\n");
  EXPECT_EQ(run_process({"no-such-program-here"}, "/").status, 127);
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}, "/").status, 137);
}

}  // namespace
}  // namespace molen::data
