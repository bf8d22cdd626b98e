// Sources to clean text.
#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "data/fetch.h"
#include "data/html.h"
#include "data/json_fields.h"
#include "data/jsonl.h"
#include "data/language.h"
#include "data/lines.h"
#include "data/prepare.h"
#include "data/recipes.h"
#include "data/roff.h"
#include "data/spdx.h"

namespace molen::data {
namespace {

// Raise it when extraction or cleaning changes what comes out, so that old text is not reused.
constexpr int kExtractorVersion = 2;

// A text file under construction, renamed into place when complete.
class TextWriter {
 public:
  TextWriter(const fs::path& folder, std::string name)
      : target_(folder / (name + ".jsonl")), part_(target_.string() + ".part") {
    out_.open(part_, std::ios::binary | std::ios::trunc);
    if (!out_) throw Error("{}: cannot be written", target_.string());
  }
  ~TextWriter() {
    std::error_code ignored;
    if (!done_) fs::remove(part_, ignored);
  }
  void add(const JsonlRecord& record) {
    const std::string line = format_jsonl(record);
    hash_.update(line.data(), line.size());
    bytes_ += static_cast<std::int64_t>(line.size());
    out_ << line;
  }
  FileRecord finish() {
    out_.close();
    if (!out_) throw Error("{}: cannot be written: is the disk full?", target_.string());
    fs::rename(part_, target_);
    done_ = true;
    return {target_.filename().string(), bytes_, hash_.hex()};
  }

 private:
  fs::path target_, part_;
  std::ofstream out_;
  Sha256 hash_;
  std::int64_t bytes_ = 0;
  bool done_ = false;
};

// What will become one text file (packages), or several by language (files).
struct Job {
  TextRecord record;
  std::vector<Recipe> recipe;  // one for packages, none for files
  fs::path root;               // of the package
  std::vector<fs::path> files;
};

std::vector<fs::path> files_below(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!it->is_symlink() && it->is_regular_file() && it->path().filename().string().ends_with(ending))
      files.push_back(it->path());
  std::sort(files.begin(), files.end());
  return files;
}

void add_packages(const fs::path& folder, std::vector<Job>& jobs) {
  const FetchRecord fetched = read_fetch_record(folder);
  for (const FetchedPackage& p : fetched.packages) {
    for (const Recipe& recipe : recipes_of(p.package)) {
      Job job;
      job.record = {recipe.language + "-" + p.package,
                    recipe.held_out ? "heldout" : "train",
                    fetched.set,
                    p.package,
                    p.version,
                    p.licence,
                    recipe.language,
                    {},
                    {}};
      job.recipe = {recipe};
      job.root = folder / "root" / p.package;
      job.files = files_below(job.root / recipe.folder, recipe.ending);
      if (job.files.empty())
        throw UsageError(
            "{}: no *{} below {}: the package is not what its recipe expects; run `molen data fetch` again",
            job.root.string(), recipe.ending, recipe.folder);
      jobs.push_back(std::move(job));
    }
  }
}

bool is_jsonl(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") || name.ends_with(".jsonl.zst") ||
         name.ends_with(".json.gz");
}

// A shard's name from a file's: what may stand in file names everywhere.
std::string safe_name(const fs::path& path) {
  std::string name = path.filename().string();
  name = name.substr(0, name.find('.'));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '-';
  return name.empty() ? "text" : name;
}

void add_files(const fs::path& path, const PrepareOptions& options, std::vector<Job>& jobs) {
  if (options.licence.empty())
    throw UsageError(
        "{}: --licence is missing: give the SPDX identifier of the text's licence (LicenseRef-... where it has "
        "none)",
        path.string());
  check_spdx(options.licence, "--licence");
  Job job;
  job.record = {safe_name(path),
                options.split,
                path.filename().string(),
                "",
                "",
                {options.licence, options.licence, "", "", "given by the user"},
                options.language,
                {},
                {}};
  job.root = fs::is_directory(path) ? path : path.parent_path();
  job.files = fs::is_directory(path) ? files_below(path, "") : std::vector{path};
  if (job.files.empty()) throw UsageError("{}: an empty folder", path.string());
  jobs.push_back(std::move(job));
}

std::vector<Job> find_jobs(const PrepareOptions& options) {
  if (options.split != "train" && options.split != "heldout")
    throw UsageError("--split {}: must be train or heldout", options.split);
  if (options.sources.empty()) throw UsageError("no source given: a folder made by `molen data fetch`, or text files");
  std::vector<Job> jobs;
  for (const fs::path& source : options.sources) {
    if (!fs::exists(source)) throw UsageError("{}: does not exist", source.string());
    if (fs::is_regular_file(source / "fetch.json"))
      add_packages(source, jobs);
    else
      add_files(source, options, jobs);
  }
  // Training text comes first, so that what it shares with held-out text is kept there and dropped here.
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.record.split > b.record.split; });
  std::set<std::string> names;
  for (Job& job : jobs) {
    const std::string base = job.record.name;
    for (int n = 2; !names.insert(job.record.name).second; ++n) job.record.name = base + "-" + std::to_string(n);
  }
  return jobs;
}

// Everything that decides the text: extractor, options, and the content of packages (by archive) or files.
std::string fingerprint(const PrepareOptions& options, const std::vector<Job>& jobs) {
  Sha256 hash;
  const auto add = [&](const std::string& word) { hash.update((word + "\n").data(), word.size() + 1); };
  add(fmt::format("extractor {}", kExtractorVersion));
  for (const fs::path& source : options.sources)
    if (fs::is_regular_file(source / "fetch.json"))
      for (const FetchedPackage& p : read_fetch_record(source).packages) add(p.package + " " + p.archive_sha256);
  for (const Job& job : jobs) {
    add(fmt::format("{} {} {} {} {} {}", job.record.name, job.record.split, job.record.language,
                    job.record.licence.spdx, job.record.licence.evidence_sha256, job.files.size()));
    if (job.recipe.empty())
      for (const fs::path& file : job.files) add(sha256_file(file));
  }
  return hash.hex();
}

std::vector<Block> extract(const Recipe& recipe, const std::string& raw) {
  HtmlRules rules;
  rules.root_id = recipe.root_id;
  switch (recipe.markup) {
    case Recipe::Markup::kHtml:
      return html_blocks(raw, rules);
    case Recipe::Markup::kRoff:
      return roff_blocks(raw);
    case Recipe::Markup::kMallard:
      rules.xml = true;
      rules.drop_tags = {"info", "links"};
      return html_blocks(raw, rules);
    case Recipe::Markup::kCode:
      return {{Block::Kind::kVerbatim, raw}};
  }
  return {};
}

void run_package(Job& job, const fs::path& folder, Cleaner& cleaner) {
  const Recipe& recipe = job.recipe[0];
  CleanRules rules;
  if (recipe.markup == Recipe::Markup::kCode) rules.filter_language = rules.deduplicate_blocks = false;
  TextWriter writer(folder / job.record.split, job.record.name);
  CleanCounts& counts = job.record.counts;
  for (const fs::path& file : job.files) {
    const std::string raw = read_text_file(file, 1 << 28);
    if (!is_clean_utf8(raw)) {
      ++counts.dropped["not UTF-8"];
      continue;
    }
    std::vector<Block> blocks;
    try {
      blocks = extract(recipe, raw);
    } catch (const UsageError&) {
      ++counts.dropped["unreadable markup"];
      continue;
    }
    if (auto text = cleaner.clean(std::move(blocks), recipe.language, rules, counts))
      writer.add({std::move(*text), fs::relative(file, job.root).generic_string(), recipe.language});
  }
  job.record.file = writer.finish();
}

// Files may hold several languages: one text file for each.
class FileJob {
 public:
  FileJob(const Job& job, const PrepareOptions& options, const fs::path& folder, Cleaner& cleaner)
      : job_(job), options_(options), folder_(folder / job.record.split), cleaner_(cleaner) {}

  std::vector<TextRecord> run() {
    for (const fs::path& file : job_.files) {
      const std::string id = fs::relative(file, job_.root).generic_string();
      if (!is_jsonl(file.filename().string())) {
        add(read_text_file(file), id, "");
        continue;
      }
      LineReader lines(file);
      JsonlParser parser;
      for (std::string_view line; lines.next(line);) {
        if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
        const std::string origin = fmt::format("{}:{}", file.string(), lines.line_number());
        JsonlRecord record = parser.parse(line, origin);
        add(record.text, record.id.empty() ? fmt::format("{}:{}", id, lines.line_number()) : record.id,
            record.language);
      }
    }
    std::vector<TextRecord> records;
    for (auto& [language, open] : open_) {
      open.record.file = open.writer->finish();
      records.push_back(std::move(open.record));
    }
    return records;
  }

 private:
  struct Open {
    TextRecord record;
    std::unique_ptr<TextWriter> writer;
  };

  Open& output(const std::string& language) {
    Open& open = open_[language];
    if (!open.writer) {
      open.record = job_.record;
      open.record.language = language;
      open.record.name = language + "-" + job_.record.name;
      open.writer = std::make_unique<TextWriter>(folder_, open.record.name);
    }
    return open;
  }

  void add(const std::string& raw, const std::string& id, const std::string& own_language) {
    std::string language = !options_.language.empty() ? options_.language : own_language;
    if (language.empty()) language = detect_language(raw);
    const bool plain =
        !language.empty() && language.size() <= 8 &&
        std::all_of(language.begin(), language.end(), [](unsigned char c) { return std::isalnum(c) || c == '-'; });
    if (!plain) language = "und";  // undetermined
    CleanRules rules;
    rules.filter_language = false;  // the user knows what these files hold
    rules.min_characters = 1;
    Open& open = output(language);
    if (!is_clean_utf8(raw)) {
      ++open.record.counts.dropped["not UTF-8"];
      return;
    }
    if (auto text = cleaner_.clean(split_plain(raw), language, rules, open.record.counts))
      open.writer->add({std::move(*text), id, language});
  }

  const Job& job_;
  const PrepareOptions& options_;
  fs::path folder_;
  Cleaner& cleaner_;
  std::map<std::string, Open> open_;
};

// output/text while it is made: it stands under another name until keep(), and bad input leaves nothing behind, neither
// it nor folders made for it. What an earlier run left stays until then.
class StagedText {
 public:
  explicit StagedText(const fs::path& output) : target_(output / "text"), folder_(output / "text.part") {
    std::error_code error;
    for (fs::path p = fs::absolute(output); !fs::exists(p, error) && p.has_relative_path(); p = p.parent_path())
      made_.push_back(p);
    fs::remove_all(folder_, error);  // of a run that was killed
    for (const char* split : {"train", "heldout"}) fs::create_directories(folder_ / split, error);
    if (!fs::is_directory(folder_ / "train")) throw Error("{}: cannot be made: {}", folder_.string(), error.message());
  }
  ~StagedText() {
    if (kept_) return;
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    for (const fs::path& p : made_) fs::remove(p, ignored);  // innermost first; only where empty
  }
  StagedText(const StagedText&) = delete;
  StagedText& operator=(const StagedText&) = delete;

  const fs::path& folder() const { return folder_; }
  void keep() {
    fs::remove_all(target_);
    fs::rename(folder_, target_);
    kept_ = true;
  }

 private:
  fs::path target_, folder_;
  std::vector<fs::path> made_;
  bool kept_ = false;
};

// The text of an earlier run, where nothing has changed since.
bool is_reusable(const fs::path& folder, const std::string& inputs, TextManifest& manifest) {
  if (!fs::is_regular_file(folder / "text.json")) return false;
  try {
    manifest = read_text_manifest(folder);
  } catch (const UsageError&) {
    return false;
  }
  if (manifest.inputs != inputs) return false;
  for (const TextRecord& text : manifest.texts) {
    const fs::path file = folder / text.split / text.file.path;
    if (!fs::is_regular_file(file) || sha256_file(file) != text.file.sha256) return false;
  }
  return true;
}

Json to_json(const TextRecord& t) {
  Json dropped = Json::object();
  for (const auto& [reason, count] : t.counts.dropped) dropped[reason] = count;
  return Json{{"name", t.name},
              {"split", t.split},
              {"source", t.source},
              {"package", t.package},
              {"version", t.version},
              {"licence", to_json(t.licence)},
              {"language", t.language},
              {"documents", t.counts.documents},
              {"text_bytes", t.counts.bytes},
              {"blocks_repeated", t.counts.blocks_repeated},
              {"blocks_foreign", t.counts.blocks_foreign},
              {"addresses", t.counts.addresses},
              {"dropped", dropped},
              {"file", {{"path", t.file.path}, {"bytes", t.file.bytes}, {"sha256", t.file.sha256}}}};
}

TextRecord text_from_json(const Json& json, const std::string& at) {
  known_fields(json,
               {"name", "split", "source", "package", "version", "licence", "language", "documents", "text_bytes",
                "blocks_repeated", "blocks_foreign", "addresses", "dropped", "file"},
               at);
  TextRecord t;
  t.name = string_field(json, "name", at);
  t.split = string_field(json, "split", at);
  if (t.split != "train" && t.split != "heldout") throw UsageError("{}: split '{}'", at, t.split);
  t.source = string_field(json, "source", at);
  t.package = string_field(json, "package", at);
  t.version = string_field(json, "version", at);
  t.licence = licence_from_json(json_member(json, "licence", at), at + ": licence");
  t.language = string_field(json, "language", at);
  t.counts.documents = count_field(json, "documents", at);
  t.counts.bytes = count_field(json, "text_bytes", at);
  t.counts.blocks_repeated = count_field(json, "blocks_repeated", at);
  t.counts.blocks_foreign = count_field(json, "blocks_foreign", at);
  t.counts.addresses = count_field(json, "addresses", at);
  const Json& dropped = json_member(json, "dropped", at);
  known_fields(dropped, {"not UTF-8", "unreadable markup", "other language", "short", "repeated"}, at + ": dropped");
  for (const auto& [reason, count] : dropped.items()) t.counts.dropped[reason] = count_field(dropped, reason, at);
  const Json& file = json_member(json, "file", at);
  t.file = {string_field(file, "path", at), count_field(file, "bytes", at), string_field(file, "sha256", at)};
  if (t.file.path != t.name + ".jsonl" || t.name.empty() || t.name.find('/') != std::string::npos || t.name[0] == '.')
    throw UsageError("{}: '{}' is not the name of its file", at, t.file.path);
  return t;
}

}  // namespace

TextManifest read_text_manifest(const fs::path& text_folder) {
  const fs::path file = text_folder / "text.json";
  const std::string at = file.string();
  const Json json = read_json(file);
  known_fields(json, {"format", "version", "inputs", "texts"}, at);
  if (string_field(json, "format", at) != "molen-text" || count_field(json, "version", at) != 1)
    throw UsageError("{}: not a molen-text manifest of version 1", at);
  TextManifest manifest{string_field(json, "inputs", at), {}};
  const Json& texts = json_member(json, "texts", at);
  if (!texts.is_array()) throw UsageError("{}: 'texts' is not a list", at);
  for (std::size_t i = 0; i < texts.size(); ++i)
    manifest.texts.push_back(text_from_json(texts[i], fmt::format("{}: texts[{}]", at, i)));
  return manifest;
}

std::string format_text_manifest(const TextManifest& manifest) {
  Json texts = Json::array();
  for (const TextRecord& text : manifest.texts) texts.push_back(to_json(text));
  return Json{{"format", "molen-text"}, {"version", 1}, {"inputs", manifest.inputs}, {"texts", texts}}.dump(1) + "\n";
}

TextManifest prepare_text(const PrepareOptions& options, const ProgressLine& progress) {
  std::vector<Job> jobs = find_jobs(options);
  TextManifest manifest;
  const std::string inputs = fingerprint(options, jobs);
  if (is_reusable(options.output / "text", inputs, manifest)) {
    if (progress) progress("text: unchanged, reused");
    return manifest;
  }
  manifest = {inputs, {}};
  StagedText staged(options.output);
  const fs::path& folder = staged.folder();
  Cleaner cleaner;
  for (Job& job : jobs) {
    if (progress) progress("extracting " + job.record.name);
    if (job.recipe.empty()) {
      for (TextRecord& record : FileJob(job, options, folder, cleaner).run())
        manifest.texts.push_back(std::move(record));
    } else {
      run_package(job, folder, cleaner);
      manifest.texts.push_back(job.record);
    }
  }
  std::int64_t documents = 0;
  for (const TextRecord& text : manifest.texts) documents += text.counts.documents;
  if (documents == 0) throw UsageError("no document is left after cleaning: are the sources text in UTF-8?");
  write_file_atomic(folder / "text.json", format_text_manifest(manifest));
  staged.keep();
  return manifest;
}

}  // namespace molen::data
