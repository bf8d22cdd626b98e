// Token shards: Megatron-compatible `.idx/.bin` pairs (magic MMIDIDX, version 1), read with every field checked and
// written so that a reader sees a whole pair or none.
//
//   .idx  "MMIDIDX\0\0", u64 version = 1, u8 dtype code, u64 S, u64 D, i32 length[S], i64 byte pointer[S],
//         i64 document index[D], optional i8 mode[S]; little-endian. documents = D - 1.
//   .bin  the tokens, back to back: u16 where the vocabulary has fewer than 65,500 entries, else i32.
//
// Tokens are read with pread: a file that is truncated under us is an error and not a SIGBUS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace molen::data {

namespace fs = std::filesystem;

// What an `.idx` file says.
struct ShardIndex {
  DType dtype = DType::kU16;
  std::int64_t tokens = 0;
  std::vector<std::int32_t> lengths;    // tokens of each sequence
  std::vector<std::int64_t> documents;  // first sequence of each document, and the number of sequences at the end

  std::int64_t document_count() const { return static_cast<std::int64_t>(documents.size()) - 1; }
};

// Parses and validates the bytes of an `.idx`; `bin_bytes` is the size of its `.bin`. Throws UsageError naming
// `origin`.
ShardIndex parse_index(std::string_view bytes, std::int64_t bin_bytes, std::string_view origin);
// The bytes of an `.idx` whose documents have one sequence each.
std::string format_index(DType dtype, std::span<const std::int32_t> lengths);
// u16 below 65,500 entries, else i32: Megatron's rule.
DType token_dtype(std::int64_t vocabulary);

// A pair opened for reading. Threads may read at the same time.
class ShardReader {
 public:
  // `prefix` is the path without `.idx` or `.bin`. Throws UsageError when a file is missing, truncated or malformed.
  explicit ShardReader(fs::path prefix);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const fs::path& prefix() const { return prefix_; }
  const ShardIndex& index() const { return index_; }
  std::int64_t tokens() const { return index_.tokens; }
  std::int64_t bin_bytes() const { return bin_bytes_; }

  // Tokens [first, first + out.size()). Throws UsageError when a token is negative or >= `vocabulary`, or when the file
  // has shrunk; `first` and the size must lie within the shard.
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const;

 private:
  fs::path prefix_;
  ShardIndex index_;
  std::int64_t bin_bytes_ = 0;
  int fd_ = -1;
};

// Writes a pair. Nothing stands under the final names before `finish`; an abandoned writer leaves nothing behind.
class ShardWriter {
 public:
  // Throws Error when the folder cannot be written.
  ShardWriter(fs::path prefix, std::int64_t vocabulary);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Appends one document (its end-of-text token included). Throws UsageError when a token is outside the vocabulary.
  void add(std::span<const std::int32_t> tokens);

  struct Written {
    std::int64_t documents, tokens, bin_bytes, idx_bytes;
    std::string bin_sha256, idx_sha256;
  };
  // Flushes to disk and renames both files into place.
  Written finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace molen::data
