// Files: whole reads with a limit, writes that are either complete or absent, hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace molen {

namespace fs = std::filesystem;

// The whole file. Throws UsageError (named file, reason) if it cannot be read or is larger than `limit` bytes.
std::string read_file(const fs::path& path, std::int64_t limit = std::int64_t{1} << 32);

// Writes beside the target, flushes to disk, renames: readers see the old or the new file, never a part.
// Throws Error (disk full, no permission) and leaves the old file untouched.
void write_file_atomic(const fs::path& path, std::string_view content);

// Flushes a directory's entries, so that a rename in it survives a power cut.
void sync_directory(const fs::path& directory);

// Lower-case hexadecimal SHA-256.
std::string sha256_hex(std::string_view data);
std::string sha256_file(const fs::path& path);

// Streaming SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, std::size_t size);
  std::string hex();  // ends the stream

 private:
  void* context_;
};

}  // namespace molen
