// The two stages of `molen data prepare`: sources to clean text, and clean text to token shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/clean.h"
#include "data/commands.h"
#include "data/manifest.h"

namespace molen::data {

// One text file: the documents of one source in one language.
struct TextRecord {
  std::string name;     // of the file, without .jsonl, and of the shard made from it
  std::string split;    // "train" or "heldout"
  std::string source;   // package set or file
  std::string package;  // "" for files
  std::string version;
  Licence licence;
  std::string language;
  CleanCounts counts;
  FileRecord file;  // path relative to the text folder's split
};

struct TextManifest {
  std::string inputs;  // fingerprint of the sources and settings
  std::vector<TextRecord> texts;
};

TextManifest read_text_manifest(const fs::path& text_folder);
Json to_json(const TextRecord& text);
TextRecord text_record_from_json(const Json& json, const std::string& origin);
std::string format_text_manifest(const TextManifest& manifest);

// Writes output/text; reuses it when inputs and files are unchanged. Unfinished text is kept in output/text.part, where
// the next call continues. Throws UsageError for sources that do not exist, have no recipe, no licence or no text.
TextManifest prepare_text(const PrepareOptions& options, const ProgressLine& progress);
// Writes output/<split>; reuses a split whose texts and tokenizer are unchanged.
std::vector<Manifest> prepare_shards(const PrepareOptions& options, const TextManifest& texts,
                                     const ProgressLine& progress);

}  // namespace molen::data
