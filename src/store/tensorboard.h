// TensorBoard event files without a protobuf library: records of (length, masked CRC-32C, Event), each appended by one
// write. Formats: tensorflow/core/util/event.proto, framework/{summary,tensor}.proto and
// lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace molen::store {

// CRC-32C (Castagnoli), and TensorFlow's rotation of it, which keeps a CRC of data that holds CRCs from degenerating.
std::uint32_t crc32c(std::string_view data);
std::uint32_t masked_crc32c(std::string_view data);

// One framed record each. `wall`: seconds since 1970.
std::string file_version_record(double wall);
std::string scalar_record(std::string_view tag, float value, std::int64_t step, double wall);
// A text in TensorBoard's text panel (Markdown).
std::string text_record(std::string_view tag, std::string_view text, std::int64_t step, double wall);
std::string session_start_record(std::int64_t step, double wall);

// Writes `dir`/events.out.tfevents.<seconds>.<n>.<host>.<pid>; a new file each time, named after those that are there,
// which are never touched.
class TensorBoardWriter {
 public:
  // Creates `dir`. Throws Error naming the file and the reason. `wall` < 0: now.
  TensorBoardWriter(const fs::path& dir, const std::string& host, std::int64_t pid, double wall = -1);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Non-finite values are written as they are: TensorBoard marks them. The value is stored as fp32.
  void scalar(std::string_view tag, double value, std::int64_t step, double wall);
  void text(std::string_view tag, std::string_view text, std::int64_t step, double wall);
  // On resume, before any scalar, with the first step that will be written again: TensorBoard then drops what earlier
  // attempts wrote at this step and after it, and curves do not fold back.
  void session_start(std::int64_t step, double wall);
  // Writes what is buffered; what is not written stays buffered. Throws IoError (disk full). The destructor flushes
  // too, and cannot report.
  void flush();

  const fs::path& path() const { return file_.path(); }

 private:
  File file_;
  std::string buffer_;
};

}  // namespace molen::store
