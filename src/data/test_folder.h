// Test helpers: a temporary folder, bytes from hexadecimal, a tokenizer, and a folder of shards with its manifest.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/manifest.h"
#include "data/shard.h"

namespace molen::data {

class TestFolder {
 public:
  TestFolder() {
    static std::atomic<int> count = 0;
    path_ = fs::temp_directory_path() / ("molen-data-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    fs::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

// Writes the smallest byte-level tokenizer: 256 bytes and an end-of-text token.
inline void write_tokenizer(const fs::path& path) {
  Json vocabulary = Json::object();
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string name;
    append_utf8(name, plain ? static_cast<std::uint32_t>(byte) : 256u + static_cast<std::uint32_t>(next++));
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

struct TestShard {
  std::string name, language;
  std::vector<std::vector<std::int32_t>> documents;
};

inline void write_test_shards(const fs::path& folder, const std::vector<TestShard>& shards, std::int64_t vocabulary,
                              const std::string& fingerprint = "test") {
  fs::create_directories(folder);
  Manifest manifest{"train", {fingerprint, vocabulary, 0}, {}};
  for (const TestShard& shard : shards) {
    ShardWriter writer(folder / shard.name, vocabulary);
    for (const auto& document : shard.documents) writer.add(document);
    const auto done = writer.finish();
    manifest.shards.push_back({shard.name,
                               "test",
                               "",
                               "1",
                               {"CC0-1.0", "CC0", "", "", "given by the user"},
                               shard.language,
                               done.documents,
                               done.tokens,
                               done.tokens * 4,
                               {shard.name + ".bin", done.bin_bytes, done.bin_sha256},
                               {shard.name + ".idx", done.idx_bytes, done.idx_sha256}});
  }
  write_file_atomic(folder / "manifest.json", format_manifest(manifest));
}

}  // namespace molen::data
