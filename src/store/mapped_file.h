// A file whose pages this process maps, so that what it stores there survives SIGKILL without a system call.
#pragma once

#include <cstddef>

#include "base/file.h"

namespace molen::store {

// Files written in this way bypass the file system interface (base/file.h). After a power cut, a page may hold any of
// the states that it went through, so each record in such a file needs a checksum.
class MappedFile {
 public:
  // Creates a new file of zeros and maps it; a process that still has an earlier file of this name keeps that one.
  // `what` begins each message: "the flight recorder". Throws Error (disk full, ...), and leaves no file then.
  MappedFile(const fs::path& file, std::size_t bytes, const char* what);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  void* data() const { return mapped_; }
  void sync(std::size_t bytes) noexcept;  // writes the first bytes to disk

 private:
  void* mapped_;
  std::size_t bytes_;
};

}  // namespace molen::store
