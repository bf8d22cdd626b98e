#include "data/manifest.h"

#include <limits>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_elements.h"
#include "data/json_fields.h"

namespace molen::data {
namespace {

constexpr std::string_view kFormat = "molen-shards";

// Accepts only a plain name: no folder, no hidden file, no character that controls a terminal.
void check_name(const std::string& name, std::string_view origin) {
  bool good = !name.empty() && name.size() <= 200 && name[0] != '.';
  for (unsigned char c : name) good = good && c > 0x20 && c < 0x7f && c != '/' && c != '\\';
  if (!good) throw UsageError("{}: '{}' is not a plain file name", origin, name);
}

void check_hash(const std::string& hash, std::string_view origin) {
  if (hash.size() != 64 || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw UsageError("{}: '{}' is not a SHA-256 in lower-case hexadecimal", origin, hash);
}

Json to_json(const FileRecord& file) {
  return Json{{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}};
}

FileRecord file_from_json(const Json& json, const std::string& origin) {
  known_fields(json, {"path", "bytes", "sha256"}, origin);
  FileRecord file{string_field(json, "path", origin), count_field(json, "bytes", origin),
                  string_field(json, "sha256", origin)};
  check_name(file.path, origin);
  check_hash(file.sha256, origin);
  return file;
}

Json to_json(const ShardRecord& s) {
  return Json{{"name", s.name},
              {"source", s.source},
              {"package", s.package},
              {"version", s.version},
              {"licence", to_json(s.licence)},
              {"language", s.language},
              {"documents", s.documents},
              {"tokens", s.tokens},
              {"text_bytes", s.text_bytes},
              {"bin", to_json(s.bin)},
              {"idx", to_json(s.idx)}};
}

ShardRecord shard_from_json(const Json& json, const std::string& origin) {
  known_fields(json,
               {"name", "source", "package", "version", "licence", "language", "documents", "tokens", "text_bytes",
                "bin", "idx"},
               origin);
  ShardRecord s;
  s.name = string_field(json, "name", origin);
  check_name(s.name, origin);
  const std::string at = origin + ": shard '" + s.name + "'";
  s.source = string_field(json, "source", at);
  s.package = string_field(json, "package", at);
  s.version = string_field(json, "version", at);
  s.licence = licence_from_json(json_member(json, "licence", at), at + ": licence");
  s.language = string_field(json, "language", at);
  s.documents = count_field(json, "documents", at);
  s.tokens = count_field(json, "tokens", at);
  s.text_bytes = count_field(json, "text_bytes", at);
  s.bin = file_from_json(json_member(json, "bin", at), at + ": bin");
  s.idx = file_from_json(json_member(json, "idx", at), at + ": idx");
  if (s.bin.path != s.name + ".bin" || s.idx.path != s.name + ".idx")
    throw UsageError("{}: its files must be called {}.bin and {}.idx", at, s.name, s.name);
  return s;
}

}  // namespace

Json to_json(const Licence& l) {
  return Json{{"spdx", l.spdx},
              {"declared", l.declared},
              {"evidence", l.evidence},
              {"evidence_sha256", l.evidence_sha256},
              {"rule", l.rule}};
}

Licence licence_from_json(const Json& json, const std::string& origin) {
  known_fields(json, {"spdx", "declared", "evidence", "evidence_sha256", "rule"}, origin);
  Licence l{string_field(json, "spdx", origin), string_field(json, "declared", origin),
            string_field(json, "evidence", origin), string_field(json, "evidence_sha256", origin),
            string_field(json, "rule", origin)};
  if (!l.evidence_sha256.empty()) check_hash(l.evidence_sha256, origin);
  return l;
}

Manifest parse_manifest(std::string_view text, std::string_view origin) {
  const std::string at(origin);
  // A data set may have a hundred thousand shards, and every rank reads their manifest: parse element by element.
  Manifest manifest;
  std::set<std::string> names;
  const Json json = parse_json_elements(text, origin, "shards", [&](std::size_t i, const Json& shard) {
    manifest.shards.push_back(shard_from_json(shard, at + ": shards[" + std::to_string(i) + "]"));
    if (!names.insert(manifest.shards.back().name).second)
      throw UsageError("{}: shard '{}' appears twice", at, manifest.shards.back().name);
  });
  known_fields(json, {"format", "version", "split", "tokenizer", "shards"}, at);
  if (string_field(json, "format", at) != kFormat)
    throw UsageError("{}: format '{}', expected '{}'", at, string_field(json, "format", at), kFormat);
  if (count_field(json, "version", at) != 1)
    throw UsageError("{}: version {}, only 1 is known", at, count_field(json, "version", at));
  manifest.split = string_field(json, "split", at);
  const Json& tokenizer = json_member(json, "tokenizer", at);
  const std::string t = at + ": tokenizer";
  known_fields(tokenizer, {"fingerprint", "vocabulary", "end_of_text"}, t);
  manifest.tokenizer.fingerprint = string_field(tokenizer, "fingerprint", t);
  manifest.tokenizer.vocabulary = count_field(tokenizer, "vocabulary", t);
  const std::int64_t end = count_field(tokenizer, "end_of_text", t);
  if (manifest.tokenizer.vocabulary < 1 || manifest.tokenizer.vocabulary > std::numeric_limits<std::int32_t>::max())
    throw UsageError("{}: a vocabulary of {} entries is impossible", t, manifest.tokenizer.vocabulary);
  if (end >= manifest.tokenizer.vocabulary)
    throw UsageError("{}: end_of_text {} is outside the vocabulary of {} entries", t, end,
                     manifest.tokenizer.vocabulary);
  manifest.tokenizer.end_of_text = static_cast<std::int32_t>(end);
  const Json& shards = json_member(json, "shards", at);
  if (!shards.is_array()) throw UsageError("{}: 'shards' is not a list", at);
  if (!shards.empty()) throw UsageError("{}: shards: {} is not an object", at, shards[0].dump().substr(0, 40));
  return manifest;
}

fs::path manifest_folder(const fs::path& path) {
  if (!fs::is_regular_file(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string no_manifest(const fs::path& path) {
  if (!fs::exists(path)) return fmt::format("{}: there is nothing of this name", path.string());
  if (fs::is_regular_file(path) || fs::exists(path / "manifest.json")) return "";
  std::string below;
  bool several = false;
  for (const char* split : {"train", "heldout"})
    if (fs::exists(path / split / "manifest.json")) {
      several = !below.empty();
      below += fmt::format("{}{}", several ? " and " : "", (path / split).string());
    }
  if (!below.empty())
    return fmt::format("{}: no manifest.json there; {} {}: name {}", path.string(), below,
                       several ? "have theirs" : "has its own", several ? "one of them" : "that");
  return fmt::format("{}: no manifest.json there; `molen data prepare` writes shards together with their manifest",
                     path.string());
}

Manifest read_manifest(const fs::path& path) {
  const fs::path file = fs::is_regular_file(path) ? path : path / "manifest.json";
  if (const std::string why = no_manifest(path); !why.empty()) throw UsageError(why);
  return parse_manifest(read_file(file, std::int64_t{1} << 30), file.string());
}

std::string format_manifest(const Manifest& manifest) {
  Json shards = Json::array();
  for (const ShardRecord& shard : manifest.shards) shards.push_back(to_json(shard));
  const Json json{{"format", kFormat},
                  {"version", 1},
                  {"split", manifest.split},
                  {"tokenizer",
                   {{"fingerprint", manifest.tokenizer.fingerprint},
                    {"vocabulary", manifest.tokenizer.vocabulary},
                    {"end_of_text", manifest.tokenizer.end_of_text}}},
                  {"shards", shards}};
  return json.dump(1) + "\n";
}

void check_tokenizer(const Manifest& manifest, std::string_view origin, std::string_view fingerprint,
                     std::int64_t vocabulary) {
  const TokenizerRecord& made = manifest.tokenizer;
  if (!fingerprint.empty() && made.fingerprint != fingerprint)
    throw UsageError(
        "{}: the shards were made with tokenizer {}, but data.tokenizer is {}: use the same tokenizer, or run "
        "`molen data prepare` again with this one",
        origin, made.fingerprint, fingerprint);
  if (made.vocabulary > vocabulary)
    throw UsageError(
        "{}: the shards hold token ids up to {}, but the model's vocabulary has {} entries: set "
        "model.vocabulary to at least {}",
        origin, made.vocabulary - 1, vocabulary, made.vocabulary);
}

}  // namespace molen::data
