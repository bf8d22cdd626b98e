// Files with one JSON object per line: metrics.jsonl, events.jsonl, energy.jsonl. They are read line by line, and
// written so that a storage failure costs only time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace molen::store {

inline constexpr std::int64_t kMaxLineBytes = std::int64_t{1} << 24;

// Calls f(line, number) for each line that is not empty, without its newline; numbers count from 1. Holds one line and
// one block at a time. Throws the errors of File, and UsageError for a line above kMaxLineBytes.
void each_line(const fs::path& file, const std::function<void(std::string_view line, std::int64_t number)>& f);

// Appends lines to a file. If a crash left the last line incomplete, the writer ends that line first, so that the next
// one is intact. Lines that cannot be written are kept, in order, and tried again with the next line: the run
// continues, and the first failure is reported.
class LineWriter {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Throws IoError when the file cannot be opened. `warn` receives the first of consecutive failures.
  explicit LineWriter(const fs::path& path, Warn warn = nullptr);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  ~LineWriter();
  void append(std::string_view line);
  // Returns true when every appended line is on disk; else it has reported the failure and the next call tries again.
  bool sync();
  bool mended() const { return mended_; }  // the file ended with an incomplete line when it was opened
  std::size_t waiting() const { return pending_.size(); }

 private:
  bool flush();
  void failed(const std::string& why);

  File file_;
  Warn warn_;
  std::string pending_;  // not written yet; may begin within a line
  bool failing_ = false, lost_ = false, mended_ = false;
  // True once the directory was synced, so that the file's name is durable. Its creator may have died before it did
  // that.
  bool entered_ = false;
};

}  // namespace molen::store
