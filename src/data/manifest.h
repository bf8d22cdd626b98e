// manifest.json: the record beside shards. It gives the source and licence of each shard's text, the tokenizer, the
// counts, and the SHA-256 of each file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace molen::data {

namespace fs = std::filesystem;

// The licence of a text and its evidence.
struct Licence {
  std::string spdx;             // "MPL-2.0", or "LicenseRef-..." when there is no SPDX identifier
  std::string declared;         // as the source writes it
  std::string evidence;         // licence file, relative to the folder of the source
  std::string evidence_sha256;  // of that file; "" when there is no file
  std::string rule;  // how `spdx` follows from the evidence: "DEP-5 Files: *", "reviewed", "given by the user"
  bool operator==(const Licence&) const = default;
};

struct FileRecord {
  std::string path;  // relative to the manifest's folder; a plain file name
  std::int64_t bytes = 0;
  std::string sha256;
  bool operator==(const FileRecord&) const = default;
};

// One `.idx/.bin` pair.
struct ShardRecord {
  std::string name;     // of the pair, without `.idx`
  std::string source;   // a package set or the files given
  std::string package;  // "" when the source is not a package
  std::string version;
  Licence licence;
  std::string language;  // ISO 639-1
  std::int64_t documents = 0, tokens = 0;
  std::int64_t text_bytes = 0;  // UTF-8 bytes of the text, the denominator of bits per byte
  FileRecord bin, idx;
  bool operator==(const ShardRecord&) const = default;
};

struct TokenizerRecord {
  std::string fingerprint;
  std::int64_t vocabulary = 0;
  std::int32_t end_of_text = 0;  // id that ends every document
  bool operator==(const TokenizerRecord&) const = default;
};

struct Manifest {
  std::string split;  // "train" or "heldout"
  TokenizerRecord tokenizer;
  std::vector<ShardRecord> shards;
  bool operator==(const Manifest&) const = default;
};

// Throw UsageError naming `origin` and the key for missing, unknown or mistyped keys, negative counts, names that point
// outside the folder, and duplicate names.
Manifest parse_manifest(std::string_view text, std::string_view origin);
// Returns the reason why there is no manifest at `path` and where one exists; "" when `path` has one.
std::string no_manifest(const fs::path& path);
// `path` is a folder with a manifest.json or that file itself.
Manifest read_manifest(const fs::path& path);
fs::path manifest_folder(const fs::path& path);
std::string format_manifest(const Manifest& manifest);
// Checks that the manifest's tokenizer is the one that its user has. Throws a UsageError that says what differs. An
// empty `fingerprint` is not compared.
void check_tokenizer(const Manifest& manifest, std::string_view origin, std::string_view fingerprint,
                     std::int64_t vocabulary);

Json to_json(const Licence& licence);
Licence licence_from_json(const Json& json, const std::string& origin);

}  // namespace molen::data
