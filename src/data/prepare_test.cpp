// Tests `molen data` on files and on a fetch folder made by the test (no network): text, shards, inspection,
// verification.
#include "data/prepare.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/test_golden.h"
#include "base/utf8.h"
#include "data/baseline.h"
#include "data/dataset.h"
#include "data/fetch.h"
#include "data/jsonl.h"
#include "data/process.h"
#include "data/recipes.h"
#include "data/test_folder.h"
#include "data/text_job.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

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
      return GoldenMessages::note(error.what());
    }
    return "";
  }
  static std::string page(const std::string& body) { return "<html><body>" + body + "</body></html>"; }

  // Builds a package in Debian's form, with these files and a copyright file.
  FetchedPackage build_package(const std::string& package,
                               const std::vector<std::pair<std::string, std::string>>& files,
                               const std::string& licence = "GPL-2+") const {
    const fs::path tree = at("build") / package;
    const auto put = [&](const std::string& path, const std::string& text) {
      fs::create_directories((tree / path).parent_path());
      write_file_atomic(tree / path, text);
    };
    for (const auto& [path, text] : files) put(path, text);
    put("usr/share/doc/" + package + "/copyright",
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nCopyright: "
        "X\nLicense: " +
            licence + "\n");
    put("DEBIAN/control",
        "Package: " + package + "\nVersion: 1.0\nArchitecture: all\nMaintainer: X <x@example.org>\nDescription: x\n");
    const fs::path archive = at("fetch") / "archives" / (package + ".deb");
    fs::create_directories(archive.parent_path());
    const ProcessResult built =
        run_process({"dpkg-deb", "-Znone", "--root-owner-group", "-b", tree.string(), archive.string()}, "/");
    EXPECT_EQ(built.status, 0) << built.output;
    unpack_archive(archive, at("fetch") / "root" / package);
    return {package,
            "1.0",
            "all",
            package + ".deb",
            static_cast<std::int64_t>(fs::file_size(archive)),
            sha256_file(archive),
            "signed package index",
            "2026-01-01T00:00:00Z",
            licence_of_package(at("fetch"), package)};
  }

  // Writes a fetch folder of two packages; one is held out.
  void write_fetch_folder() const {
    std::string dutch, held;
    for (int i = 0; i < 4; ++i)
      dutch += "<p>" + sentence("De eerste tekst staat op de pagina van het pakket.", i) + "</p>";
    held = "<p>" + sentence("De eerste tekst staat op de pagina van het pakket.", 0) + "</p>";
    for (int i = 10; i < 13; ++i)
      held += "<p>" + sentence("Hier staat een andere tekst die voor de toets is.", i) + "</p>";
    const std::string english =
        "<p>This is an English paragraph that has been left in the page by the translators of it.</p>";
    const std::string help = "usr/share/libreoffice/help/nl/text/";
    FetchRecord record{"demo", {}};
    record.packages.push_back(build_package(
        "libreoffice-help-nl",
        {{help + "a.html", page("<header>menu</header><div id='DisplayArea'>" + dutch + english + "</div>")},
         {help + "b.html", page("<div id='DisplayArea'>" + dutch + "</div>")},
         {help + "c.html", page("<div id='DisplayArea'>\xff\xfe</div>")}}));
    record.packages.push_back(
        build_package("aptitude-doc-nl", {{"usr/share/doc/aptitude/html/nl/a.html", page(held)}}));
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
  EXPECT_EQ(
      out.str(),
      "split    language  source               licence           documents  dropped  repeated  foreign  bytes  tokens\n"
      "train    nl        libreoffice-help-nl  GPL-2.0-or-later          1        2         4        1    555     556\n"
      "heldout  nl        aptitude-doc-nl      GPL-2.0-or-later          1        0         1        0    416     "
      "417\n");

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

  // A second run makes nothing again.
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

TEST_F(PrepareTest, NoControlCharactersReachATerminal) {
  write_test_shards(at("s"), {{"a", "nl\x1b]52;c;aGk=\x07", {{1, 2, 0}}}}, 10);
  std::ostringstream out, err;
  inspect_command({at("s"), false}, out);
  EXPECT_NE(out.str().find("nl\\x1b]52;c;aGk=\\x07"), std::string::npos);
  EXPECT_EQ(out.str().find('\x1b'), std::string::npos);
  write_file_atomic(at("s") / "x\x1b[2J.bin", "");
  EXPECT_EQ(verify_command({at("s"), "", false}, out, err), 2);
  EXPECT_NE(err.str().find("x\\x1b[2J.bin: not in the manifest"), std::string::npos) << err.str();
  EXPECT_EQ(err.str().find('\x1b'), std::string::npos);
}

// Returns the text as gzip packs it, by way of a file.
std::string packed(const std::string& text, const fs::path& file) {
  gzFile to = gzopen(file.c_str(), "wb");
  gzwrite(to, text.data(), static_cast<unsigned>(text.size()));
  gzclose(to);
  return read_file(file);
}

// Returns every document of a folder's text.
std::string all_text(const fs::path& folder) {
  std::string all;
  for (const TextRecord& t : read_text_manifest(folder).texts)
    all += t.name + "\n" + read_file(folder / t.split / t.file.path);
  return all;
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
  // The names of all forms of JSON lines; the content says how it is compressed.
  const std::string lines = format_jsonl({sentence("Het tweede bestand van de map.", 2), "id1", ""}) + "\n";
  for (const char* name : {"c.jsonl", "c.jsonl.gz", "c.json.gz", "c.jsonl.zst"}) {
    write_file_atomic(at(name), packed(lines, at("x.gz")));
    PrepareOptions one = options({at(name)});
    one.output = at(std::string("out-") + name);
    EXPECT_EQ(prepare_command(one, out, {}), 0);
    const std::string text = all_text(one.output / "text");
    EXPECT_NE(text.find("Het tweede bestand"), std::string::npos) << text;
    EXPECT_EQ(text.find("\"text\":\"{"), std::string::npos) << name << " was read as plain text: " << text;
  }
  // The folder with a slash after it is the same source.
  PrepareOptions slash = options({at("in") / ""});
  slash.output = at("slash");
  EXPECT_EQ(prepare_command(slash, out, {}), 0);
  const TextManifest same = read_text_manifest(at("slash") / "text");
  ASSERT_EQ(same.texts.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(same.texts[i].name, texts.texts[i].name);
    EXPECT_EQ(same.texts[i].source, "in");
  }
}

// A line's own name of a language is taken when it has the form of one.
TEST_F(PrepareTest, ANameOfALanguageHasEightCharactersAtMost) {
  std::string lines;
  for (const char* name : {"a-code-8", "a-code-09", "n l"})
    lines += format_jsonl({sentence(fmt::format("De tekst is van {}.", name), 1), "", name}) + "\n";
  write_file_atomic(at("a.jsonl"), lines);
  std::ostringstream out;
  EXPECT_EQ(prepare_command(options({at("a.jsonl")}), out, {}), 0);
  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 2u);
  EXPECT_EQ(texts.texts[0].language, "a-code-8");
  EXPECT_EQ(texts.texts[0].counts.documents, 1);
  EXPECT_EQ(texts.texts[1].language, "und");
  EXPECT_EQ(texts.texts[1].counts.documents, 2);
}

// A text of more than one batch (16 MiB) is not held whole, so that its tokens are counted before its end.
TEST_F(PrepareTest, LongTextsAreTokenisedInBatches) {
  write_tokenizer(at("tokenizer.json"));
  std::string lines;
  for (int number = 0; lines.size() <= 17 << 20;) {
    std::string text;
    while (text.size() < 1 << 20) text += sentence("De tekst is lang.", number++) + "\n";
    lines += format_jsonl({text, "", "nl"}) + "\n";
  }
  write_file_atomic(at("a.jsonl"), lines);
  PrepareOptions o = options({at("a.jsonl")});
  o.tokenizer = at("tokenizer.json");
  std::vector<double> shares;
  o.at = [&](std::string_view stage, double share, std::string_view) {
    if (stage == "tokens") shares.push_back(share);
  };
  std::ostringstream out;
  EXPECT_EQ(prepare_command(o, out, {}), 0);
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0], 0);
  EXPECT_GT(shares[1], 0.9);
  EXPECT_LT(shares[1], 1);
  EXPECT_EQ(shares[2], 1);
}

// Names of shards: letters, digits, - and _ of the file's name stay; every other character becomes a dash.
TEST_F(PrepareTest, NamesComeFromFiles) {
  const GoldenMessages golden;
  write_file_atomic(at("a_b-c 7.x.txt"), sentence("De tekst van het bestand is in het Nederlands.", 1));
  std::ostringstream out;
  EXPECT_EQ(prepare_command(options({at("a_b-c 7.x.txt")}), out, {}), 0);
  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 1u);
  EXPECT_NE(texts.texts[0].name.find("a_b-c-7"), std::string::npos) << texts.texts[0].name;
  const fs::path file = at("out") / "text" / "text.json";
  Json json = parse_json(read_file(file), "text");
  // Another format, or a version that is not known.
  for (const auto& [key, value] : {std::pair<const char*, Json>{"format", "molen-shards"}, {"version", 2}}) {
    Json other = json;
    other[key] = value;
    write_file_atomic(file, other.dump());
    try {
      read_text_manifest(at("out") / "text");
      ADD_FAILURE() << "accepted: " << key;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("not a molen-text manifest of version 1"), std::string::npos);
    }
  }
  // A malformed list of texts.
  for (const Json& wrong : {Json::object(), Json("x"), Json(nullptr)}) {
    json["texts"] = wrong;
    write_file_atomic(file, json.dump());
    EXPECT_NOTED(read_text_manifest(at("out") / "text"), UsageError) << wrong;
  }
}

// Shards are made again when either of their two record files (manifest and inputs) is missing.
TEST_F(PrepareTest, ShardsWithoutTheirRecordsAreMadeAgain) {
  write_tokenizer(at("tokenizer.json"));
  write_file_atomic(at("a.txt"), sentence("De tekst van het bestand is in het Nederlands.", 1));
  PrepareOptions o = options({at("a.txt")});
  o.tokenizer = at("tokenizer.json");
  std::ostringstream out;
  ASSERT_EQ(prepare_command(o, out, {}), 0);
  const auto texts = read_text_manifest(at("out") / "text").texts;
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(read_file(at("out") / "train" / "inputs"),
            fmt::format("{} {} {}\n", texts[0].name, texts[0].file.sha256, texts[0].licence.spdx));
  for (const char* name : {"inputs", "manifest.json"}) {
    fs::remove(at("out") / "train" / name);
    std::vector<std::string> steps;
    EXPECT_EQ(prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); }), 0);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), "train shards: unchanged, reused"), 0) << name;
    EXPECT_TRUE(fs::exists(at("out") / "train" / name));
  }
}

// A file of code is one text: it has no language to compare with, and it is dropped as a repeated document, not as a
// document that is short because its block was repeated.
TEST_F(PrepareTest, CodeIsTakenWholeOrNotAtAll) {
  std::string code = "# Deze tekst staat hier in een andere taal dan de code, en hij blijft staan.\n";
  for (int i = 0; i < 8; ++i) code += "def f(x):\n    return [x, x + 1, x + 2, x + 3]  # the same line again\n";
  const std::string folder = "usr/lib/python3.11/";
  FetchRecord record{"demo", {}};
  record.packages.push_back(build_package(
      "libpython3.11-stdlib",
      {{folder + "a.py", code}, {folder + "b.py", code}, {folder + "c.py", code + "g = 1\n"}, {folder + "d.py", "x"}}));
  write_file_atomic(at("fetch") / "fetch.json", format_fetch_record(record));
  EXPECT_EQ(reason(options({at("fetch")})), "");
  const TextManifest texts = read_text_manifest(at("out") / "text");
  ASSERT_EQ(texts.texts.size(), 1u);
  const TextRecord& text = texts.texts[0];
  EXPECT_EQ(text.language, "code");
  EXPECT_EQ(text.counts.documents, 2);
  EXPECT_EQ(text.counts.blocks_foreign, 0);
  EXPECT_EQ(text.counts.blocks_repeated, 0);
  EXPECT_EQ(text.counts.dropped, (std::map<std::string, std::int64_t>{{"repeated", 1}, {"short", 1}}));
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

// The name of a special token in a text is plain text: only molen itself ends a document.
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
  const GoldenMessages golden;
  write_file_atomic(at("a.jsonl"), "{\"txet\":\"x\"}\n{\"txet\":\"y\"}\n");
  EXPECT_NE(reason(options({at("a.jsonl")})).find("2 invalid lines and no valid one; the first: "), std::string::npos);
  EXPECT_NE(reason(options({at("a.jsonl")})).find("a.jsonl:1: no 'text'"), std::string::npos);
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
  // Bad input leaves an earlier result in place.
  std::ostringstream out;
  o.tokenizer = "";
  EXPECT_EQ(prepare_command(o, out, {}), 0);
  const std::string before = read_file(at("out") / "text" / "text.json");
  EXPECT_NE(reason(options({at("a.jsonl")})), "");
  EXPECT_EQ(read_file(at("out") / "text" / "text.json"), before);
  EXPECT_FALSE(fs::exists(at("out") / "text.part"));
}

TEST_F(PrepareTest, WhatIsTrainedIsWhatTheArchiveHolds) {
  const GoldenMessages golden;
  write_fetch_folder();
  std::ostringstream out;
  const auto reads = [&] {
    fs::remove_all(at("out"));
    std::vector<std::string> notes;
    EXPECT_EQ(prepare_command(options({at("fetch")}), out, [&](const std::string& line) { notes.push_back(line); }), 0);
    return read_file(at("out") / "text/train/nl-libreoffice-help-nl.jsonl");
  };
  const std::string honest = reads();
  // Files added to root/ do not count as the package's text.
  const fs::path folder = at("fetch") / "root/libreoffice-help-nl/usr/share/libreoffice/help/nl/text";
  write_file_atomic(folder / "a.html", page("<div id='DisplayArea'><p>" + sentence("Ingevoegd.", 1) + "</p></div>"));
  write_file_atomic(folder / "new.html", page("<div id='DisplayArea'><p>" + sentence("Nieuw.", 2) + "</p></div>"));
  EXPECT_EQ(reads(), honest);

  const auto refused = [&](const std::string& why) {
    fs::remove_all(at("out"));
    EXPECT_NE(reason(options({at("fetch")})).find(why), std::string::npos) << reason(options({at("fetch")}));
  };
  const std::string good = read_file(at("fetch") / "fetch.json");
  std::string edited = good;
  edited.replace(edited.find("GPL-2.0-or-later"), 16, "CC0-1.0");
  write_file_atomic(at("fetch") / "fetch.json", edited);
  refused(
      "fetch.json gives the licence CC0-1.0 to libreoffice-help-nl, and the copyright file in its archive gives it "
      "GPL-2.0-or-later");
  write_file_atomic(at("fetch") / "fetch.json", good);
  const fs::path archive = at("fetch") / "archives/libreoffice-help-nl.deb";
  const std::string bytes = read_file(archive);
  write_file_atomic(archive, bytes + "x");
  refused("its SHA-256 is not the one that fetch.json recorded");
  fs::remove(archive);
  refused("is gone");
  write_file_atomic(archive, bytes);

  // A progress line names a package whose version no index knows.
  edited = good;
  edited.replace(edited.find("signed package index"), 20, "");
  write_file_atomic(at("fetch") / "fetch.json", edited);
  fs::remove_all(at("out"));
  std::vector<std::string> notes;
  prepare_command(options({at("fetch")}), out, [&](const std::string& line) { notes.push_back(line); });
  EXPECT_EQ(
      std::count(
          notes.begin(), notes.end(),
          "note: libreoffice-help-nl 1.0 is in no signed package index, so nothing shows that it comes from Debian"),
      1);
}

std::string json_line(int i) {
  return format_jsonl({sentence("De regel van het bestand staat hier.", i), "", "nl"});
}

// Another user of a shared folder may guess the name of the unpacking folder and plant a link: nothing is written
// through it.
TEST_F(PrepareTest, UnpackingFollowsNoLinkThatWaitsForIt) {
  const FetchedPackage package = build_package("demo", {{"usr/share/doc/demo/a.html", "text"}});
  const fs::path root = at("fetch") / "root", elsewhere = at("elsewhere");
  fs::create_directories(elsewhere);
  fs::remove_all(root / "demo");
  for (const char* name : {"demo.part", "demo.tmp", ".demo.part", "demo.part-0"})
    fs::create_directory_symlink(elsewhere, root / name);
  unpack_archive(at("fetch") / "archives" / package.archive, root / "demo");
  EXPECT_EQ(read_file(root / "demo/usr/share/doc/demo/a.html"), "text");
  EXPECT_TRUE(fs::is_empty(elsewhere));
  // If the target itself is a link, the link is replaced; the folder that it points to is not touched.
  fs::remove_all(root / "demo");
  fs::create_directory_symlink(elsewhere, root / "demo");
  unpack_archive(at("fetch") / "archives" / package.archive, root / "demo");
  EXPECT_FALSE(fs::is_symlink(root / "demo"));
  EXPECT_EQ(read_file(root / "demo/usr/share/doc/demo/a.html"), "text");
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(PrepareTest, AnInvalidLineIsNamedAndSkipped) {
  const GoldenMessages golden;
  std::string text;
  for (int i = 0; i < 50; ++i) text += i == 20 ? "{\"text\": 3}\n" : json_line(i);
  write_file_atomic(at("a.jsonl"), text);
  std::vector<std::string> steps;
  std::ostringstream out;
  EXPECT_EQ(prepare_command(options({at("a.jsonl")}), out, [&](const std::string& line) { steps.push_back(line); }), 0);
  EXPECT_EQ(steps[1], "skipped " + at("a.jsonl").string() + ":21: 'text' is not a string");
  const TextManifest texts = read_text_manifest(at("out") / "text");
  EXPECT_EQ(texts.texts[0].counts.documents, 49);
  EXPECT_EQ(texts.texts[0].counts.dropped.at("invalid line"), 1);
  // More invalid lines than slips: the file has another format.
  for (int i = 0; i < 11; ++i) text += "no JSON\n";
  write_file_atomic(at("a.jsonl"), text);
  EXPECT_NE(reason(options({at("a.jsonl")})).find("12 of the first 61 lines are invalid; the first: "),
            std::string::npos);
}

TEST_F(PrepareTest, WorkThatIsDoneIsKept) {
  const GoldenMessages golden;
  std::string first, second;
  for (int i = 0; i < 40; ++i) first += json_line(i);
  for (int i = 20; i < 90; ++i) second += json_line(i);
  fs::create_directories(at("in"));
  write_file_atomic(at("first.jsonl"), first);
  write_file_atomic(at("second.jsonl"), second);
  const std::vector<fs::path> sources{at("first.jsonl"), at("second.jsonl")};
  std::ostringstream out;
  prepare_command(options(sources), out, {});
  const std::string expected = all_text(at("out") / "text");
  fs::remove_all(at("out"));

  // The second file ends in a damaged member: the first file's text stays, and is not made again once the second is
  // mended.
  const std::string mended_second = packed(second, at("x.gz"));
  fs::remove(at("second.jsonl"));
  write_file_atomic(at("second.jsonl.gz"), mended_second.substr(0, mended_second.size() / 2));
  PrepareOptions o = options({at("first.jsonl"), at("second.jsonl.gz")});
  EXPECT_NE(reason(o).find("truncated"), std::string::npos);
  EXPECT_TRUE(fs::exists(at("out") / "text.part/train/nl-first.jsonl"));
  write_file_atomic(at("second.jsonl.gz"), mended_second);
  std::vector<std::string> steps;
  prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); });
  EXPECT_EQ(steps, std::vector<std::string>{"extracting second"});
  const std::string mended = all_text(at("out") / "text");
  EXPECT_EQ(mended.size(), expected.size() + 50 * 3) << "the same but for .gz in the ids";
  EXPECT_EQ(read_text_manifest(at("out") / "text").texts[1].counts.dropped.at("short"), 20)
      << "what the first file has is known";
  EXPECT_FALSE(fs::exists(at("out") / "text.part"));

  // A third source: the first two are not read again.
  write_file_atomic(at("third.jsonl"), json_line(500));
  o.sources.push_back(at("third.jsonl"));
  steps.clear();
  prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); });
  EXPECT_EQ(steps, std::vector<std::string>{"extracting third"});
  // When an earlier source changes, all later sources are read again.
  write_file_atomic(at("first.jsonl"), first + json_line(600));
  steps.clear();
  prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); });
  EXPECT_EQ(steps, (std::vector<std::string>{"extracting first", "extracting second", "extracting third"}));
}

// A run that is killed at any moment and then continued writes the same output as an undisturbed run.
TEST_F(PrepareTest, KilledAndGoneOnWith) {
  const fs::path input = at("a.jsonl");
  std::string text;
  for (int i = 0; i < 300; ++i) text += json_line(i) + json_line(i / 2);
  write_file_atomic(input, text);
  std::ostringstream out;
  prepare_command(options({input}), out, {});
  const std::string expected = all_text(at("out") / "text");
  const JobState whole = *TextFolder(at("out") / "text").load(0, read_text_manifest(at("out") / "text").inputs);
  fs::remove_all(at("out"));

  PrepareOptions o = options({input});
  for (const std::int64_t killed_at : {1, 17, 300, 599}) {
    // The state after a save at that line, plus text and hashes that were written after the save.
    std::string half;
    std::istringstream lines(text);
    std::string line;
    for (std::int64_t i = 0; i < killed_at && std::getline(lines, line); ++i) half += line + "\n";
    fs::remove_all(at("half"));
    fs::create_directories(at("cut"));
    write_file_atomic(at("cut") / "a.jsonl", half);
    PrepareOptions part = options({at("cut") / "a.jsonl"});
    part.output = at("half");
    prepare_command(part, out, {});
    fs::remove_all(at("out"));
    fs::create_directories(at("out"));
    fs::rename(at("half") / "text", at("out") / "text.part");
    const TextFolder folder(at("out") / "text.part");
    JobState state = *folder.load(0, read_text_manifest(folder.path()).inputs);
    for (const char* file : {"train/nl-a.jsonl", "seen"}) {
      std::ofstream more(folder.path() / file, std::ios::app | std::ios::binary);
      more << "torn";
    }
    state.key = whole.key;
    state.done = false;
    state.files = 0;
    state.line = killed_at;
    folder.save(0, state);
    std::vector<std::string> steps;
    prepare_command(o, out, [&](const std::string& step) { steps.push_back(step); });
    EXPECT_EQ(steps, std::vector<std::string>{"going on with a"});
    EXPECT_TRUE(all_text(at("out") / "text") == expected) << killed_at;
    EXPECT_EQ(TextFolder(at("out") / "text").load(0, whole.key)->seen, whole.seen);
  }
}

TEST_F(PrepareTest, TwoInOneFolderDoNotMix) {
  const GoldenMessages golden;
  write_file_atomic(at("a.jsonl"), json_line(1));
  std::ostringstream out;
  std::string second;
  PrepareOptions o = options({at("a.jsonl")});
  prepare_command(o, out, [&](const std::string&) { second = reason(o); });
  EXPECT_NE(second.find("another `molen data prepare` is writing there"), std::string::npos) << second;
  EXPECT_EQ(read_text_manifest(at("out") / "text").texts.size(), 1u);
  EXPECT_EQ(reason(o), "");
}

TEST_F(PrepareTest, ShardsOfAnEarlierRunAreKept) {
  write_tokenizer(at("tokenizer.json"));
  write_file_atomic(at("a.jsonl"), json_line(1));
  write_file_atomic(at("b.jsonl"), json_line(2));
  PrepareOptions o = options({at("a.jsonl"), at("b.jsonl")});
  o.tokenizer = at("tokenizer.json");
  std::ostringstream out;
  prepare_command(o, out, {});
  const Manifest manifest = read_manifest(at("out") / "train");
  // The state that a run killed after the first shard leaves.
  Manifest half = manifest;
  half.shards.pop_back();
  write_file_atomic(at("out") / "train/manifest.part.json", format_manifest(half));
  fs::remove(at("out") / "train/manifest.json");
  fs::remove(at("out") / "train/nl-b.bin");
  std::vector<std::string> steps;
  prepare_command(o, out, [&](const std::string& line) { steps.push_back(line); });
  EXPECT_EQ(steps, (std::vector<std::string>{"text: unchanged, reused", "tokenising nl-b"}));
  EXPECT_EQ(read_manifest(at("out") / "train"), manifest);
  EXPECT_FALSE(fs::exists(at("out") / "train/manifest.part.json"));
}

TEST_F(PrepareTest, FetchRecordAndSets) {
  const GoldenMessages golden;
  write_fetch_folder();
  const FetchRecord record = read_fetch_record(at("fetch"));
  EXPECT_EQ(parse_fetch_record(format_fetch_record(record), "x"), record);
  std::string text = format_fetch_record(record);
  text.replace(text.find("aptitude-doc-nl"), 15, "../titude-doc-n");
  EXPECT_NOTED(parse_fetch_record(text, "x"), UsageError);
  std::ostringstream out;
  EXPECT_EQ(fetch_command({"", "", true, false}, out, {}), 0);
  EXPECT_NE(out.str().find("debian-reference-en"), std::string::npos);
  EXPECT_NOTED(fetch_command({"dmeo", at("x"), false, false}, out, {}), UsageError);
  EXPECT_NOTED(fetch_command({"demo", "", false, false}, out, {}), UsageError);
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

}  // namespace
}  // namespace molen::data
