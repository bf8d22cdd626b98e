// Clean text to token shards.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/jsonl.h"
#include "data/lines.h"
#include "data/prepare.h"
#include "data/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

// Text held at a time: enough to keep all cores busy, little beside any model.
constexpr std::size_t kBatchBytes = 16 << 20;

ShardRecord make_shard(const TextRecord& text, const fs::path& jsonl, const fs::path& folder,
                       const Tokenizer& tokenizer, std::int32_t end_of_text, int threads) {
  ShardWriter writer(folder / text.name, tokenizer.vocab_size());
  LineReader lines(jsonl);
  JsonlParser parser;
  std::vector<std::string> batch;
  std::size_t bytes = 0;
  std::int64_t text_bytes = 0;
  std::vector<std::int32_t> tokens;
  const auto flush = [&] {
    const std::vector<std::string_view> views(batch.begin(), batch.end());
    for (const auto& ids : tokenizer.encode_batch(views, {}, threads)) {
      tokens.assign(ids.begin(), ids.end());
      tokens.push_back(end_of_text);
      writer.add(tokens);
    }
    batch.clear();
    bytes = 0;
  };
  for (std::string_view line; lines.next(line);) {
    batch.push_back(parser.parse(line, fmt::format("{}:{}", jsonl.string(), lines.line_number())).text);
    bytes += batch.back().size();
    text_bytes += static_cast<std::int64_t>(batch.back().size());
    if (bytes >= kBatchBytes) flush();
  }
  flush();
  const ShardWriter::Written done = writer.finish();
  return {text.name,
          text.source,
          text.package,
          text.version,
          text.licence,
          text.language,
          done.documents,
          done.tokens,
          text_bytes,
          {text.name + ".bin", done.bin_bytes, done.bin_sha256},
          {text.name + ".idx", done.idx_bytes, done.idx_sha256}};
}

// True where the split's manifest and files are what these texts and this tokenizer would give.
bool is_reusable(const fs::path& folder, const std::vector<const TextRecord*>& texts, const TokenizerRecord& tokenizer,
                 const std::string& inputs, Manifest& manifest) {
  if (!fs::is_regular_file(folder / "manifest.json") || !fs::is_regular_file(folder / "inputs")) return false;
  try {
    manifest = read_manifest(folder);
    if (read_file(folder / "inputs", 1 << 12) != inputs) return false;
  } catch (const UsageError&) {
    return false;
  }
  if (manifest.tokenizer != tokenizer || manifest.shards.size() != texts.size()) return false;
  for (const ShardRecord& shard : manifest.shards)
    for (const FileRecord* file : {&shard.bin, &shard.idx})
      if (!fs::is_regular_file(folder / file->path) || sha256_file(folder / file->path) != file->sha256) return false;
  return true;
}

}  // namespace

std::vector<Manifest> prepare_shards(const PrepareOptions& options, const TextManifest& texts,
                                     const ProgressLine& progress) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  const auto end = tokenizer.eos_id();
  if (!end)
    throw UsageError("{}: has no end-of-text token (<|endoftext|>, <|end_of_text|> or </s>), which ends every document",
                     options.tokenizer.string());
  const TokenizerRecord record{tokenizer.fingerprint(), tokenizer.vocab_size(), static_cast<std::int32_t>(*end)};
  std::vector<Manifest> manifests;
  for (const std::string split : {"train", "heldout"}) {
    std::vector<const TextRecord*> members;
    std::string listing;
    for (const TextRecord& text : texts.texts)
      if (text.split == split && text.counts.documents > 0) {
        members.push_back(&text);
        listing += text.name + " " + text.file.sha256 + " " + text.licence.spdx + "\n";
      }
    if (members.empty()) continue;
    const fs::path folder = options.output / split;
    std::error_code error;
    fs::create_directories(folder, error);
    if (!fs::is_directory(folder)) throw Error("{}: cannot be made: {}", folder.string(), error.message());
    const std::string inputs = sha256_hex(listing + record.fingerprint) + "\n";
    Manifest manifest;
    if (is_reusable(folder, members, record, inputs, manifest)) {
      if (progress) progress(split + " shards: unchanged, reused");
    } else {
      manifest = {split, record, {}};
      fs::remove(folder / "manifest.json");  // no manifest stands beside shards that it does not describe
      for (const TextRecord* text : members) {
        if (progress) progress("tokenising " + text->name);
        manifest.shards.push_back(make_shard(*text, options.output / "text" / split / text->file.path, folder,
                                             tokenizer, record.end_of_text, options.threads));
      }
      write_file_atomic(folder / "inputs", inputs);
      write_file_atomic(folder / "manifest.json", format_manifest(manifest));
    }
    manifests.push_back(std::move(manifest));
  }
  return manifests;
}

}  // namespace molen::data
