// Test helpers: a folder that is removed with its owner, the newest checkpoint of a folder, and a limit that makes
// writes fail like a full disk.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

namespace molen::checkpoint {

class TestFolder {
 public:
  TestFolder() {
    std::string name = (fs::temp_directory_path() / "molen-checkpoint-XXXXXX").string();
    MOLEN_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp");
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(std::string_view name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Returns the step of the newest checkpoint after verifying it; -1 where there is none.
inline std::int64_t newest_whole(const fs::path& directory) {
  const auto found = latest(directory);
  if (!found) return -1;
  verify(*found);
  return Checkpoint(*found).step();
}

// Limits every file of this process to `bytes`; further writes fail with EFBIG.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ScopedFileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  ScopedFileLimit(const ScopedFileLimit&) = delete;
  ScopedFileLimit& operator=(const ScopedFileLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace molen::checkpoint
