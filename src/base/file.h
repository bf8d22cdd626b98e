// Files: whole reads with a limit, writes that are either complete or absent, hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/filesystem.h"

namespace molen {

// Reads a whole regular file. Throws the errors of File::open (naming file and reason), and UsageError if the file is
// larger than `limit` bytes; never takes more memory than that.
std::string read_file(const fs::path& path, std::int64_t limit = std::int64_t{1} << 26);

// Writes beside the target, flushes to disk, renames: readers see the old or the new file, never a part. Throws IoError
// (disk full, no permission) and leaves the old file untouched.
void write_file_atomic(const fs::path& path, std::string_view content);
// Does the same without the flush. Readers still see the old or the new file, but after a power cut the file may also
// be empty.
void write_file_unsynced(const fs::path& path, std::string_view content);

// Returns the SHA-256 in lower-case hexadecimal.
std::string sha256_hex(std::string_view data);
std::string sha256_file(const fs::path& path);

// Returns the HMAC of a text by RFC 2104 with SHA-256, in lower-case hexadecimal.
std::string hmac_sha256_hex(std::string_view key, std::string_view text);

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
