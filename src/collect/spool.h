// The records of a node that the collector has not acknowledged. They are in a file, so that a restart of the node does
// not lose it, and in memory, from where it is sent. Both are bounded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "base/filesystem.h"
#include "collect/record.h"

namespace molen::collect {

struct SpoolOptions {
  // The most bytes of the lines that wait. The file has at most twice as many, for a while three times. At least 256
  // KiB.
  std::size_t most_bytes = std::size_t{16} << 20;
  double wait_s = 0;  // for another process that still has the file
  int stop = -1;      // a descriptor; once it is readable, the wait lasts kSpoolStoppedWaitS more at most
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

inline constexpr double kSpoolStoppedWaitS = 6;  // another sender that was told to stop needs less

class SpoolInUse : public UsageError {
 public:
  using UsageError::UsageError;
};

class Spool {
 public:
  // Begins a session of the node, and takes up what earlier sessions left in the file. Throws UsageError if the file is
  // no spool or belongs to another node, SpoolInUse if another process has it, and IoError if it cannot be written.
  Spool(fs::path file, std::string node, SpoolOptions options = {});
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Adds the records of a batch; the spool gives it node, session and number. On return it is on the disk; if the disk
  // fails, it is in memory, and the file is written anew with the next batch. For want of room the oldest batches are
  // dropped: this batch then has an event "dropped" with their number.
  void add(Batch batch);

  // The lines that wait have the numbers begin() to end()-1, in the order in which they are to be sent. A number
  // belongs to one line for ever.
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return begin_ + static_cast<std::int64_t>(lines_.size()); }
  bool empty() const { return lines_.empty(); }
  // Returns a line with its newline.
  const std::string& line(std::int64_t number) const;

  // Returns whether the acknowledgement of a batch is that of a line with this number or a later one.
  bool acknowledges(std::int64_t number, const std::string& session, std::int64_t seq) const;
  // Forgets a batch, and the earlier ones of its session.
  void acknowledge(const std::string& session, std::int64_t seq);

  std::int64_t dropped() const { return dropped_; }  // batches of this session's time, in all
  const std::string& session() const { return session_; }
  const fs::path& file() const { return path_; }

 private:
  struct Line {
    std::string session;
    std::int64_t seq = 0;
    std::string text;
    std::int64_t reported = 0;  // dropped batches that it reports
  };
  void lock();
  void load();
  std::int64_t make_room();
  void append(const std::string& text);
  void rewrite();
  void forget_first();

  const fs::path path_;
  const std::string node_, session_, header_;
  const SpoolOptions options_;
  std::optional<File> lock_, file_;
  std::deque<Line> lines_;
  std::int64_t begin_ = 0, seq_ = 0, dropped_ = 0;
  std::int64_t unread_ = 0;  // lines of the file that could not be read, to be reported
  std::size_t waiting_bytes_ = 0, file_bytes_ = 0;
  bool failing_ = false;  // the file lacks some of the lines
};

}  // namespace molen::collect
