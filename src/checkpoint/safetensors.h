// safetensors files: a reader that trusts nothing it reads, and a streaming writer.
//
//   offset 0    u64 N, little-endian         length of the header
//   offset 8    N bytes of JSON              {"__metadata__": {str: str},
//                                            name: {"dtype", "shape", "data_offsets"}, ...}
//   offset 8+N  the tensors, back to back    row-major, little-endian; data_offsets count from here
//
// Format: https://github.com/huggingface/safetensors. Stricter than the reference reader, ours refuses duplicate keys,
// unknown keys, names with control characters or "..", and sizes beyond the caps below: two readers must not disagree
// on one file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace molen::checkpoint {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference's limit
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
inline constexpr std::size_t kMaxMetadata = std::size_t{1} << 18;  // entries of "__metadata__"
inline constexpr std::size_t kMaxMetadataBytes = std::size_t{1} << 24;
inline constexpr std::size_t kMaxRank = 16;
inline constexpr std::size_t kMaxNameBytes = 4096;

// Translate between "F32" and DType. Nullopt stands for types of the format that molen does not compute with (F8_E4M3,
// C64, ...).
std::optional<DType> dtype_from_safetensors(std::string_view name);
std::string_view safetensors_name(DType dtype);

// Returns the reason why a tensor may not have this name, or "". Applies to the writer and the reader.
std::string name_problem(std::string_view name);

struct TensorInfo {
  std::string name;
  std::string dtype_name;      // as written in the file
  std::optional<DType> dtype;  // absent: valid, but not a type molen reads
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the buffer's start
  std::uint64_t end = 0;
  std::int64_t elements() const;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::uint64_t buffer_begin = 0;               // 8 + N
};

// Parses a header. `bytes` are at least the first 8 + N bytes of a file of `file_size` bytes (fewer are reported as a
// short file). Throws UsageError naming `origin`, the rule that is broken and the tensor.
SafetensorsHeader parse_safetensors(std::string_view bytes, std::uint64_t file_size, std::string_view origin);

// An open file. Reads use pread, so a file that is cut short meanwhile gives an error and not SIGBUS. Threads may share
// it.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& path) : SafetensorsFile(File::open(path)) {}
  // Throws UsageError when the file is not a safetensors file, IoError when the storage does not answer.
  explicit SafetensorsFile(File file);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const fs::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const TensorInfo* find(std::string_view name) const;  // null if absent
  const TensorInfo& at(std::string_view name) const;    // throws UsageError
  // Reads `count` elements from flattened position `offset`, unconverted. Throws DamagedError when the file ends early,
  // IoError when the storage does not answer.
  void read(const TensorInfo& tensor, std::int64_t offset, std::int64_t count, void* destination) const;
  void read_bytes(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t size, void* destination) const;
  // Compares each tensor with its hash in "__metadata__", if present. Returns the number of tensors compared.
  std::int64_t verify_hashes() const;

 private:
  File file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

// Sorts tensors into the order in which the reference writer and ours write them: widest dtype first, then by name.
void sort_as_written(std::vector<TensorSpec>& tensors);
// Returns the header of a file of these tensors, back to back in this order, including the eight bytes of its length.
std::string header_of(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata);

struct WriterOptions {
  std::map<std::string, std::string> metadata;
  bool hashes = false;  // "xxh3:<name>" in "__metadata__"; the parts of a tensor must then come in order
};

// Writes a file whose header is known in advance and whose tensors arrive in parts of any size. `path` does not exist
// before finish(). The header is padded to a multiple of 8 bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(fs::path path, std::vector<TensorSpec> tensors, WriterOptions options = {});
  ~SafetensorsWriter();  // removes an unfinished file
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes `size` bytes at byte `offset` of the tensor. Throws Error (disk full, ...).
  void write(std::string_view tensor, std::uint64_t offset, const void* data, std::uint64_t size);
  // Flushes to disk and renames into place. Throws Error. All parts must have been written (else a MOLEN_CHECK fails).
  void finish();
  std::uint64_t bytes() const;  // of the whole file

 private:
  struct Slot;
  std::string header_text() const;

  File file_;  // under a temporary name
  WriterOptions options_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::uint64_t buffer_begin_ = 0, buffer_size_ = 0;
};

// Returns the XXH3-128 as 32 lower-case hexadecimal digits.
std::string xxh3_hex(const void* data, std::size_t size);

}  // namespace molen::checkpoint
