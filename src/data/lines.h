// Reads text files of any size as lines: plain, gzip or zstd, recognized by their first bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace molen::data {

class LineReader {
 public:
  // Throws UsageError when the file cannot be opened or is not a regular file.
  explicit LineReader(const std::filesystem::path& path, std::int64_t line_limit = std::int64_t{64} << 20);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Stores the next line without its end (LF or CR LF), valid until the next call; returns false at the end. Throws
  // UsageError with file and line for damaged or truncated compression, for data that decompresses to hundreds of times
  // its size, and for a line beyond the limit.
  bool next(std::string_view& line);
  std::int64_t line_number() const { return line_number_; }
  std::int64_t bytes_read() const;  // of the file, still compressed

 private:
  struct Source;
  struct Plain;
  struct Gzip;
  struct Zstd;
  bool fill();

  std::string path_;
  std::int64_t line_limit_, line_number_ = 0;
  std::unique_ptr<Source> source_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

// Returns the whole file, decompressed; at most `limit` bytes.
std::string read_text_file(const std::filesystem::path& path, std::int64_t limit = std::int64_t{1} << 31);

}  // namespace molen::data
