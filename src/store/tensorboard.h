// TensorBoard event files without a protobuf library: records of (length, masked CRC-32C, Event), each appended by one
// write. Formats: tensorflow/core/util/event.proto, framework/{summary,tensor}.proto and
// lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace molen::store {

// Return CRC-32C (Castagnoli), and TensorFlow's rotation of it, which it uses because its data may contain CRCs.
std::uint32_t crc32c(std::string_view data);
std::uint32_t masked_crc32c(std::string_view data);

// Each returns one framed record. `wall`: seconds since 1970.
std::string file_version_record(double wall);
std::string scalar_record(std::string_view tag, float value, std::int64_t step, double wall);
// For TensorBoard's text panel; `text` is Markdown.
std::string text_record(std::string_view tag, std::string_view text, std::int64_t step, double wall);
std::string session_start_record(std::int64_t step, double wall);

// Writes `dir`/events.out.tfevents.<seconds>.<n>.<host>.<pid>. Each writer makes a new file whose name sorts after
// those of existing files, which it never changes.
class TensorBoardWriter {
 public:
  // Creates `dir`. Throws Error naming the file and the reason. `wall` < 0: now.
  TensorBoardWriter(const fs::path& dir, const std::string& host, std::int64_t pid, double wall = -1);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Writes non-finite values unchanged: TensorBoard marks them. Stores the value as fp32.
  void scalar(std::string_view tag, double value, std::int64_t step, double wall);
  void text(std::string_view tag, std::string_view text, std::int64_t step, double wall);
  // On resume, call this before any scalar with the first step that will be written again. TensorBoard then drops this
  // step and later ones of earlier attempts, so curves do not fold back.
  void session_start(std::int64_t step, double wall);
  // Writes the buffer; bytes that cannot be written stay buffered. Throws IoError (disk full). The destructor flushes
  // too, but cannot report errors.
  void flush();

  const fs::path& path() const { return file_.path(); }

 private:
  File file_;
  std::string buffer_;
};

}  // namespace molen::store
