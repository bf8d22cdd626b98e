// Token shards: Megatron-compatible `.idx/.bin` pairs (magic MMIDIDX, version 1). Reading checks every field. A pair
// appears only when both files are complete.
//
//   .idx  "MMIDIDX\0\0", u64 version = 1, u8 dtype code, u64 S, u64 D, i32 length[S], i64 byte pointer[S],
//         i64 document index[D], optional i8 mode[S]; little-endian. documents = D - 1.
//   .bin  the tokens, back to back: u16 where the vocabulary has fewer than 65,500 entries, else i32.
//
// Tokens are read with pread, so a file that is truncated meanwhile gives an error and not SIGBUS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace molen::data {

namespace fs = std::filesystem;

// The content of an `.idx` file.
struct ShardIndex {
  DType dtype = DType::kU16;
  std::int64_t tokens = 0, documents = 0;
};

// Tokens [first, end) are one document.
using OnDocument = std::function<void(std::int64_t first, std::int64_t end)>;

// Reads and validates an `.idx` through windows of a few kilobytes, whatever size it declares; `bin_bytes` is the size
// of its `.bin`. Throws UsageError naming `origin`.
ShardIndex parse_index(std::string_view bytes, std::int64_t bin_bytes, std::string_view origin,
                       const OnDocument& on_document = {});
// Reads and validates the index of the pair `prefix`.idx and .bin in the same way.
ShardIndex read_index(const fs::path& prefix, const OnDocument& on_document = {});
// Reads only the header of `prefix`.idx and the size of `prefix`.bin, for shards whose index is too large to read at
// every start. Does not check the sequences.
ShardIndex read_index_header(const fs::path& prefix);
// Returns the bytes of an `.idx` whose documents have one sequence each.
std::string format_index(DType dtype, std::span<const std::int32_t> lengths);
// Returns u16 for a vocabulary below 65,500 entries, else i32. This is Megatron's rule.
DType token_dtype(std::int64_t vocabulary);

// Reads the tokens of a pair. Threads may read at the same time.
//
// A data set may have more shards than a process may have open files. A pair is therefore opened when it is read,
// checked against the sizes given, and closed after many other pairs were read.
class ShardReader {
 public:
  // `prefix` is the path without `.idx` or `.bin`. Opens nothing.
  ShardReader(const fs::path& prefix, std::int64_t tokens, std::int64_t bin_bytes)
      : prefix_(prefix.string()), tokens_(tokens), bin_bytes_(bin_bytes) {}
  // Takes the sizes from the pair. Throws UsageError when one of its files is missing, truncated or malformed.
  explicit ShardReader(const fs::path& prefix);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const std::string& prefix() const { return prefix_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t bin_bytes() const { return bin_bytes_; }

  // Reads tokens [first, first + out.size()). Throws UsageError when a token is negative or >= `vocabulary`, or when
  // the pair is missing, malformed or of another size. The range must lie within the shard.
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const;

 private:
  std::string prefix_;
  std::int64_t tokens_ = 0, bin_bytes_ = 0;
};

// Return the number of pairs that are open now, and the most that may be: a quarter of the files that the process may
// open, and at most 1,024.
int open_shards();
int open_shards_limit();

// Writes a pair. The final names do not exist before `finish`. A writer that is destroyed before that leaves no file
// behind.
class ShardWriter {
 public:
  // Throws Error when the folder cannot be written.
  ShardWriter(const fs::path& prefix, std::int64_t vocabulary);
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
