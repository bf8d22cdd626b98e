#include "store/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace molen::store {

MappedFile::MappedFile(const fs::path& file, std::size_t bytes, const char* what) : mapped_(MAP_FAILED), bytes_(bytes) {
  try {
    make_directories(file.parent_path());
    remove_file(file);
    File created = File::create_new(file);
    // Allocates real blocks instead of a hole: on a full disk, a store to a page without a block would kill the process
    // (SIGBUS).
    created.allocate(static_cast<std::int64_t>(bytes));
    created.write(std::string(bytes, '\0'));
    mapped_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, created.descriptor(), 0);
    if (mapped_ == MAP_FAILED) throw Error("{}: cannot be mapped: {}", file.string(), std::strerror(errno));
  } catch (const Error& error) {
    file_system().remove(file);  // removes a partly made file
    throw Error("{}: {}", what, error.what());
  }
  std::memset(mapped_, 0, bytes);  // also maps every page before the first record
}

MappedFile::~MappedFile() {
  ::munmap(mapped_, bytes_);
}

void MappedFile::sync(std::size_t bytes) noexcept {
  ::msync(mapped_, bytes, MS_SYNC);
}

}  // namespace molen::store
