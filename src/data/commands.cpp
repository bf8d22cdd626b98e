#include "data/commands.h"

#include <sys/file.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary.h"
#include "base/utf8.h"
#include "data/fetch.h"
#include "data/manifest.h"
#include "data/prepare.h"
#include "data/recipes.h"
#include "data/shard.h"
#include "data/tokenizer/tokenizer.h"
#include "data/verified.h"

namespace molen::data {
namespace {

// A table with columns as wide as their widest cell and right-aligned numbers. All rows have as many cells as the head.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) {
    for (std::string& cell : row) cell = printable(cell);
    rows_.push_back(std::move(row));
  }
  void print(std::ostream& out) const {
    std::vector<std::size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_)
      for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) {
        const bool number = is_number(rows_.back()[c]);
        line += (c == 0 ? "" : "  ") +
                (number ? fmt::format("{:>{}}", row[c], widths[c]) : fmt::format("{:<{}}", row[c], widths[c]));
      }
      while (!line.empty() && line.back() == ' ') line.pop_back();
      out << line << "\n";
    }
  }

 private:
  static bool is_number(const std::string& cell) {
    return !cell.empty() && cell.find_first_not_of("0123456789.,-") == std::string::npos;
  }
  std::vector<std::vector<std::string>> rows_;
};

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

// The folder that `prepare` writes to, locked for one process at a time. When a run has no result, the folders that it
// made are removed.
class OutputFolder {
 public:
  explicit OutputFolder(const fs::path& path) : lock_(path / ".prepare.lock") {
    for (fs::path p = fs::absolute(path); !path_exists(p) && p.has_relative_path(); p = p.parent_path())
      made_.push_back(p);
    make_directories(path);
    file_.emplace(File::append(lock_));
    if (::flock(file_->descriptor(), LOCK_EX | LOCK_NB) == 0) return;
    throw UsageError("{}: another `molen data prepare` is writing there; wait for it, or give another --output",
                     path.string());
  }
  ~OutputFolder() {
    if (!made_.empty() && is_bare()) file_system().remove(lock_);
    for (const fs::path& p : made_) file_system().remove(p);  // innermost first; only if empty
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

 private:
  bool is_bare() const {
    std::error_code ignored;
    return std::distance(fs::directory_iterator(lock_.parent_path(), ignored), fs::directory_iterator()) == 1;
  }
  fs::path lock_;
  std::vector<fs::path> made_;
  std::optional<File> file_;
};

// Returns the folders with a manifest at `path`: `path` itself, or its train and heldout folders.
std::vector<fs::path> manifest_folders(const fs::path& path) {
  if (!fs::exists(path)) throw UsageError("{}: does not exist", path.string());
  if (fs::is_regular_file(path) || fs::exists(path / "manifest.json")) return {path};
  std::vector<fs::path> folders;
  for (const char* split : {"train", "heldout"})
    if (fs::exists(path / split / "manifest.json")) folders.push_back(path / split);
  if (folders.empty()) read_manifest(path);  // throws and says what is missing and what to do
  return folders;
}

Json totals(const Manifest& manifest) {
  std::map<std::string, std::array<std::int64_t, 3>> languages;
  for (const ShardRecord& s : manifest.shards) {
    auto& sum = languages[s.language];
    sum[0] += s.documents;
    sum[1] += s.tokens;
    sum[2] += s.text_bytes;
  }
  Json json = Json::object();
  for (const auto& [language, sum] : languages)
    json[language] = Json{{"documents", sum[0]}, {"tokens", sum[1]}, {"text_bytes", sum[2]}};
  return json;
}

// Reads one whole shard and appends its differences from the manifest to `findings`.
void verify_shard(const fs::path& folder, const Manifest& manifest, const ShardRecord& record,
                  std::vector<std::string>& findings) {
  const std::string prefix = (folder / record.name).string();
  const std::size_t before = findings.size();
  for (const FileRecord* file : {&record.bin, &record.idx}) {
    const fs::path path = folder / file->path;
    if (!fs::is_regular_file(path)) {
      findings.push_back(path.string() + ": missing");
    } else if (static_cast<std::int64_t>(fs::file_size(path)) != file->bytes) {
      findings.push_back(
          fmt::format("{}: {} bytes, its manifest says {}", path.string(), fs::file_size(path), file->bytes));
    } else if (sha256_file(path) != file->sha256) {
      findings.push_back(path.string() + ": its SHA-256 is not the one in the manifest");
    }
  }
  if (findings.size() != before) return;
  const ShardIndex index = read_index(prefix);
  if (index.tokens != record.tokens || index.documents != record.documents) {
    findings.push_back(fmt::format("{}: {} documents and {} tokens, its manifest says {} and {}", prefix,
                                   index.documents, index.tokens, record.documents, record.tokens));
    return;
  }
  const ShardReader reader(prefix, record.tokens, record.bin.bytes);
  std::vector<std::int32_t> tokens;
  constexpr std::int64_t kStep = 1 << 20;
  for (std::int64_t at = 0; at < reader.tokens(); at += kStep) {
    tokens.resize(static_cast<std::size_t>(std::min(kStep, reader.tokens() - at)));
    reader.read(at, tokens, manifest.tokenizer.vocabulary);
  }
  std::optional<std::int64_t> wrong_end;  // the first document without the end-of-text token
  std::int64_t document = 0;
  read_index(prefix, [&](std::int64_t first, std::int64_t end) {
    std::int32_t last = -1;
    if (end > first) reader.read(end - 1, {&last, 1}, manifest.tokenizer.vocabulary);
    if (last != manifest.tokenizer.end_of_text && !wrong_end) wrong_end = document;
    ++document;
  });
  if (wrong_end)
    findings.push_back(fmt::format("{}: document {} does not end with the end-of-text token", prefix, *wrong_end));
}

}  // namespace

int fetch_command(const FetchOptions& options, std::ostream& out, const ProgressLine& progress) {
  if (options.list) {
    Json json = Json::array();
    for (const PackageSet& set : package_sets()) {
      json.push_back({{"set", set.name}, {"description", set.description}, {"packages", set.packages}});
      if (!options.json) {
        out << set.name << ": " << set.description << "\n";
        for (const std::string& package : set.packages) out << "  " << package << "\n";
      }
    }
    if (options.json) out << json.dump(1) << "\n";
    return 0;
  }
  package_set(options.set);
  if (options.folder.empty()) throw UsageError("--output is missing: the folder to fetch into");
  const FetchRecord record = fetch_packages(options.set, options.folder, [&](const std::string& line) {
    if (progress) progress(line);
  });
  if (options.json) {
    out << format_fetch_record(record);
    return 0;
  }
  Table table({"package", "version", "licence", "evidence", "checked by", "bytes"});
  for (const FetchedPackage& p : record.packages)
    table.add({p.package, p.version, p.licence.spdx, p.licence.rule, p.checked.empty() ? "nothing" : p.checked,
               grouped(p.archive_bytes)});
  table.print(out);
  return 0;
}

int prepare_command(const PrepareOptions& options, std::ostream& out, const ProgressLine& progress) {
  if (options.output.empty()) throw UsageError("--output is missing: the folder to write to");
  if (options.threads < 0) throw UsageError("--threads {}: must not be negative", options.threads);
  // An unreadable tokenizer is reported before hours of extraction, and before anything is written.
  if (!options.tokenizer.empty()) Tokenizer::load(options.tokenizer);
  const OutputFolder folder(options.output);
  // Removes temporary files of a killed run. That is safe, because no other process writes here.
  for (const char* below :
       {"", "train", "heldout", "text", "text.part", "text.part/train", "text.part/heldout", "text.part/jobs"})
    remove_temporaries(options.output / below);
  const TextManifest texts = prepare_text(options, progress);
  std::vector<Manifest> manifests;
  if (!options.tokenizer.empty()) manifests = prepare_shards(options, texts, progress);
  std::map<std::string, std::int64_t> tokens;
  for (const Manifest& manifest : manifests)
    for (const ShardRecord& shard : manifest.shards) tokens[manifest.split + "/" + shard.name] = shard.tokens;
  if (options.json) {
    Json json = Json::array();
    for (const Manifest& manifest : manifests)
      json.push_back({{"split", manifest.split}, {"languages", totals(manifest)}});
    out << Json{{"text", Json::parse(format_text_manifest(texts))}, {"shards", json}}.dump(1) << "\n";
    return 0;
  }
  Table table(
      {"split", "language", "source", "licence", "documents", "dropped", "repeated", "foreign", "bytes", "tokens"});
  for (const TextRecord& t : texts.texts) {
    std::int64_t dropped = 0;
    for (const auto& [reason, count] : t.counts.dropped) dropped += count;
    const auto found = tokens.find(t.split + "/" + t.name);
    table.add({t.split, t.language, t.package.empty() ? t.source : t.package, t.licence.spdx,
               grouped(t.counts.documents), grouped(dropped), grouped(t.counts.blocks_repeated),
               grouped(t.counts.blocks_foreign), grouped(t.counts.bytes),
               found == tokens.end() ? "-" : grouped(found->second)});
  }
  table.print(out);
  return 0;
}

int inspect_command(const InspectOptions& options, std::ostream& out) {
  Json all = Json::array();
  for (const fs::path& folder : manifest_folders(options.path)) {
    const Manifest manifest = read_manifest(folder);
    Json json = Json::parse(format_manifest(manifest));
    json["languages"] = totals(manifest);
    json["path"] = manifest_folder(folder).string();
    if (options.json) {
      all.push_back(std::move(json));
      continue;
    }
    out << manifest_folder(folder).string() << " (" << printable(manifest.split) << "), tokenizer "
        << printable(manifest.tokenizer.fingerprint.substr(0, 16)) << ", " << grouped(manifest.tokenizer.vocabulary)
        << " entries\n";
    Table table({"shard", "language", "licence", "version", "documents", "tokens", "bytes", "bytes/token"});
    const auto row = [&](const std::string& name, const std::string& language, const std::string& licence,
                         const std::string& version, std::int64_t documents, std::int64_t tokens, std::int64_t bytes) {
      table.add({name, language, licence, version, grouped(documents), grouped(tokens), grouped(bytes),
                 tokens > 0 ? fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(tokens)) : "-"});
    };
    for (const ShardRecord& s : manifest.shards)
      row(s.name, s.language, s.licence.spdx, s.version, s.documents, s.tokens, s.text_bytes);
    for (const auto& [language, sum] : json["languages"].items())
      row("all", language, "", "", sum["documents"], sum["tokens"], sum["text_bytes"]);
    table.print(out);
  }
  if (options.json) out << all.dump(1) << "\n";
  return 0;
}

int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err) {
  std::vector<std::string> findings;
  std::int64_t shards = 0, tokens = 0;
  std::string fingerprint;
  if (!options.tokenizer.empty()) fingerprint = Tokenizer::load(options.tokenizer).fingerprint();
  for (const fs::path& path : manifest_folders(options.path)) {
    const Manifest manifest = read_manifest(path);
    const fs::path folder = manifest_folder(path);
    if (!fingerprint.empty() && manifest.tokenizer.fingerprint != fingerprint)
      findings.push_back(fmt::format("{}: made with tokenizer {}, not with {} ({})", folder.string(),
                                     manifest.tokenizer.fingerprint, options.tokenizer.string(), fingerprint));
    std::set<std::string> listed;
    VerifiedShards verified(folder);
    for (const ShardRecord& record : manifest.shards) {
      listed.insert(record.bin.path);
      try {
        const std::string stamp = verified.stamp(record);
        const std::size_t before = findings.size();
        verify_shard(folder, manifest, record, findings);
        if (findings.size() == before) verified.add(record, stamp, Verified::kHashed);
      } catch (const Error& error) {
        findings.emplace_back(error.what());
      }
      if (record.licence.spdx.empty()) findings.push_back((folder / record.name).string() + ": no licence");
      ++shards;
      tokens += record.tokens;
    }
    verified.save();
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".bin" && !listed.contains(entry.path().filename().string()))
        findings.push_back(entry.path().string() + ": not in the manifest");
  }
  for (const std::string& finding : findings) err << printable(finding) << "\n";
  if (options.json) {
    out << Json{{"ok", findings.empty()}, {"shards", shards}, {"tokens", tokens}, {"findings", findings}}.dump(1)
        << "\n";
  } else if (findings.empty()) {
    out << fmt::format("{} shards, {} tokens: every hash, count and token is right\n", shards, grouped(tokens));
  } else {
    err << fmt::format("{} findings in {} shards\n", findings.size(), shards);
  }
  return findings.empty() ? 0 : 2;
}

}  // namespace molen::data
