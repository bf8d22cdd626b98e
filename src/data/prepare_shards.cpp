// Turns clean text into token shards.
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "data/jsonl.h"
#include "data/lines.h"
#include "data/prepare.h"
#include "data/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace molen::data {
namespace {

// Bytes of text in memory at a time: enough to keep all cores busy, little compared with any model.
constexpr std::size_t kBatchBytes = 16 << 20;

ShardRecord make_shard(const TextRecord& text, const fs::path& jsonl, const fs::path& folder,
                       const Tokenizer& tokenizer, std::int32_t end_of_text, int threads,
                       const std::function<void(std::int64_t text_bytes)>& told) {
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
    told(text_bytes);
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

// Identifies the text and the licence that a shard is made from.
std::string input_line(const TextRecord& text) {
  return fmt::format("{} {} {}", text.name, text.file.sha256, text.licence.spdx);
}

// The output of an earlier run, finished or not, in the folder of a split: its shards and the lines of `inputs`.
struct Made {
  Made(const fs::path& folder, const TokenizerRecord& tokenizer) : folder_(folder) {
    for (const char* name : {"manifest.json", "manifest.part.json"}) {
      try {
        const Manifest manifest = read_manifest(folder / name);
        std::istringstream lines(read_file(folder / "inputs"));
        for (std::string line; std::getline(lines, line);) inputs_.insert(line);
        if (manifest.tokenizer == tokenizer)
          for (const ShardRecord& shard : manifest.shards) shards_[shard.name] = shard;
        whole = std::string_view(name) == "manifest.json";
        return;
      } catch (const IoError&) {
        throw;
      } catch (const UsageError&) {
        // No manifest, or an invalid one: nothing can be reused.
      }
    }
  }
  // Returns this text's shard if the folder holds all its bytes, else null.
  const ShardRecord* find(const TextRecord& text) const {
    const auto found = shards_.find(text.name);
    if (found == shards_.end() || !inputs_.contains(input_line(text))) return nullptr;
    for (const FileRecord* file : {&found->second.bin, &found->second.idx})
      if (!fs::is_regular_file(folder_ / file->path) || sha256_file(folder_ / file->path) != file->sha256)
        return nullptr;
    return &found->second;
  }
  std::size_t count() const { return shards_.size(); }
  bool whole = false;

 private:
  const fs::path& folder_;
  std::map<std::string, ShardRecord> shards_;
  std::set<std::string> inputs_;
};

// Progress of tokenization over all texts.
struct TokenProgress {
  const ProgressShare& at;
  std::int64_t done = 0, all = 0;  // bytes of text
  void tell(std::int64_t more, const std::string& name) const {
    if (at && all > 0) at("tokens", static_cast<double>(done + more) / static_cast<double>(all), name);
  }
};

// Makes the shards of one split and reuses valid shards of an earlier run.
Manifest make_split(const std::string& split, const std::vector<const TextRecord*>& texts,
                    const PrepareOptions& options, const Tokenizer& tokenizer, const TokenizerRecord& record,
                    const ProgressLine& progress, TokenProgress& at) {
  const fs::path folder = options.output / split;
  make_directories(folder);
  const Made made(folder, record);
  Manifest manifest{split, record, {}};
  std::string inputs;
  bool changed = !made.whole || made.count() != texts.size();
  for (const TextRecord* text : texts) {
    inputs += input_line(*text) + "\n";
    if (const ShardRecord* shard = made.find(*text)) {
      manifest.shards.push_back(*shard);
      at.done += text->counts.bytes;
      continue;
    }
    if (progress) progress("tokenising " + text->name);
    at.tell(0, text->name);
    remove_file(folder / "manifest.json");  // otherwise it would lie beside shards that it does not describe
    changed = true;
    manifest.shards.push_back(make_shard(*text, options.output / "text" / split / text->file.path, folder, tokenizer,
                                         record.end_of_text, options.threads,
                                         [&](std::int64_t bytes) { at.tell(bytes, text->name); }));
    at.done += text->counts.bytes;
    write_file_unsynced(folder / "inputs", inputs);
    write_file_unsynced(folder / "manifest.part.json", format_manifest(manifest));
  }
  if (changed) {
    write_file_atomic(folder / "inputs", inputs);
    write_file_atomic(folder / "manifest.json", format_manifest(manifest));
  } else if (progress) {
    progress(split + " shards: unchanged, reused");
  }
  remove_file(folder / "manifest.part.json");
  sync_directory(folder);
  return manifest;
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
  TokenProgress at{options.at, 0, 0};
  for (const TextRecord& text : texts.texts) at.all += text.counts.bytes;
  for (const std::string split : {"train", "heldout"}) {
    std::vector<const TextRecord*> members;
    for (const TextRecord& text : texts.texts)
      if (text.split == split && text.counts.documents > 0) members.push_back(&text);
    if (!members.empty()) manifests.push_back(make_split(split, members, options, tokenizer, record, progress, at));
  }
  return manifests;
}

}  // namespace molen::data
