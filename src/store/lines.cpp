#include "store/lines.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"

namespace molen::store {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
// The most that is kept while the storage fails: the lines of hours of steps. Beyond it the oldest lines are dropped,
// which is reported too.
constexpr std::size_t kMostPending = std::size_t{64} << 20;

}  // namespace

void each_line(const fs::path& path, const std::function<void(std::string_view line, std::int64_t number)>& f) {
  const File file = File::open(path);
  std::vector<char> block(kBlock);
  std::string line;  // the part of a line in earlier blocks
  std::int64_t number = 1;
  for (std::int64_t at = 0;;) {
    const std::size_t got = file.read_some(block.data(), block.size(), at);
    at += static_cast<std::int64_t>(got);
    std::string_view rest(block.data(), got);
    for (std::size_t end; (end = rest.find('\n')) != std::string_view::npos; ++number) {
      const std::string_view part = rest.substr(0, end);
      rest.remove_prefix(end + 1);
      if (line.empty()) {
        if (!part.empty()) f(part, number);
        continue;
      }
      line += part;
      f(line, number);
      line.clear();
    }
    line += rest;
    if (static_cast<std::int64_t>(line.size()) > kMaxLineBytes)
      throw UsageError("{}:{}: a line above {} bytes", path.string(), number, kMaxLineBytes);
    if (got < block.size()) break;
  }
  if (!line.empty()) f(line, number);
}

LineWriter::LineWriter(const fs::path& path, Warn warn) : file_(File::append(path)), warn_(std::move(warn)) {
  char last = '\n';
  const std::int64_t size = file_.size();
  if (size > 0 && file_.read_some(&last, 1, size - 1) == 1 && last != '\n') {
    mended_ = true;
    append("");
  }
}

LineWriter::~LineWriter() {
  flush();
}

void LineWriter::append(std::string_view line) {
  if (pending_.size() + line.size() > kMostPending) {
    const std::size_t end = pending_.find('\n');
    pending_.erase(0, end == std::string::npos ? pending_.size() : end + 1);
    if (!std::exchange(lost_, true)) failing_ = false;  // so that the next failure reports the loss
  }
  pending_ += line;
  pending_ += '\n';
  flush();
}

// Bytes that the system accepted are never offered again, so that a line is neither doubled nor torn.
bool LineWriter::flush() {
  while (!pending_.empty()) {
    const std::int64_t wrote = file_system().write(file_.descriptor(), pending_.data(), pending_.size());
    if (wrote == -EINTR) continue;
    if (wrote <= 0) {
      try {
        throw_write_error(file_.path(), wrote < 0 ? wrote : -EIO);
      } catch (const IoError& error) {
        failed(error.what());
      }
      return false;
    }
    pending_.erase(0, static_cast<std::size_t>(wrote));
  }
  failing_ = false;
  return true;
}

bool LineWriter::sync() {
  if (!flush()) return false;
  try {
    file_.sync();
    if (!entered_) sync_directory(file_.path().has_parent_path() ? file_.path().parent_path() : fs::path("."));
    return entered_ = true;
  } catch (const IoError& error) {
    failed(error.what());
    return false;
  }
}

void LineWriter::failed(const std::string& why) {
  if (std::exchange(failing_, true)) return;
  if (warn_) warn_(why + (lost_ ? "; the oldest lines are lost" : "; the run goes on, and tries again with each step"));
}

}  // namespace molen::store
