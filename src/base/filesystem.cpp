#include "base/filesystem.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/temporary.h"

namespace molen {
namespace {

constexpr std::size_t kTransfer = std::size_t{1} << 24;  // bytes per call: some file systems accept at most 2 GiB

template <class T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

FileSystem& the_system() {
  static FileSystem system;
  return system;
}

std::atomic<FileSystem*> current{nullptr};

std::string reason(std::int64_t code) {
  return std::strerror(static_cast<int>(-code));
}

FileStatus status_of(const struct stat& s) {
  FileStatus status;
  using Kind = FileStatus::Kind;
  status.kind = S_ISREG(s.st_mode)   ? Kind::kFile
                : S_ISDIR(s.st_mode) ? Kind::kDirectory
                : S_ISLNK(s.st_mode) ? Kind::kLink
                                     : Kind::kOther;
  status.size = s.st_size;
  status.modified_ns = std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
  status.device = s.st_dev;
  status.inode = s.st_ino;
  return status;
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

int FileSystem::open(const fs::path& path, int flags, int mode) {
  return or_errno(::open(path.c_str(), flags | O_CLOEXEC, mode));
}
int FileSystem::close(int fd) {
  return or_errno(::close(fd));
}
std::int64_t FileSystem::read(int fd, void* to, std::size_t size, std::int64_t offset) {
  return or_errno(static_cast<std::int64_t>(::pread(fd, to, size, offset)));
}
std::int64_t FileSystem::write(int fd, const void* from, std::size_t size) {
  return or_errno(static_cast<std::int64_t>(::write(fd, from, size)));
}
std::int64_t FileSystem::write_at(int fd, const void* from, std::size_t size, std::int64_t offset) {
  return or_errno(static_cast<std::int64_t>(::pwrite(fd, from, size, offset)));
}
int FileSystem::allocate(int fd, std::int64_t size) {
  return or_errno(::fallocate(fd, 0, 0, size));
}
int FileSystem::sync(int fd) {
  return or_errno(::fsync(fd));
}
int FileSystem::truncate(int fd, std::int64_t size) {
  return or_errno(::ftruncate(fd, size));
}
int FileSystem::rename(const fs::path& from, const fs::path& to) {
  return or_errno(::rename(from.c_str(), to.c_str()));
}
int FileSystem::exchange(const fs::path& a, const fs::path& b) {
  return or_errno(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}
int FileSystem::link(const fs::path& from, const fs::path& to) {
  return or_errno(::link(from.c_str(), to.c_str()));
}
int FileSystem::remove(const fs::path& path) {
  return or_errno(::remove(path.c_str()));
}
int FileSystem::make_directory(const fs::path& path, int mode) {
  return or_errno(::mkdir(path.c_str(), static_cast<mode_t>(mode)));
}

int FileSystem::list(const fs::path& path, std::vector<DirectoryEntry>& entries) {
  DIR* const directory = ::opendir(path.c_str());
  if (!directory) return -errno;
  errno = 0;  // the end of the list does not change errno
  for (const dirent* entry = nullptr; (entry = ::readdir(directory)) != nullptr; errno = 0) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {  // some file systems do not report types
      FileStatus status;
      is_directory = this->status(path / name, status) == 0 && status.kind == FileStatus::Kind::kDirectory;
    }
    entries.push_back({name, is_directory});
  }
  const int code = -errno;
  ::closedir(directory);
  return code;
}

int FileSystem::status(int fd, FileStatus& status) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) return -errno;
  status = status_of(s);
  return 0;
}
int FileSystem::status(const fs::path& path, FileStatus& status) {
  struct stat s {};
  if (::lstat(path.c_str(), &s) != 0) return -errno;
  status = status_of(s);
  return 0;
}

FileSystem& file_system() {
  FileSystem* instead = current.load();
  return instead ? *instead : the_system();
}

FileSystemOverride::FileSystemOverride(FileSystem& instead) : before_(current.exchange(&instead)) {}
FileSystemOverride::~FileSystemOverride() {
  current.store(before_);
}

void throw_read_error(const fs::path& path, std::int64_t code) {
  const std::string text = fmt::format("{}: cannot be read: {}", path.string(), reason(code));
  switch (-code) {
    case ENOENT:
    case ENOTDIR:
      throw MissingFileError(text);
    case EACCES:
    case EPERM:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
    case EINVAL:
      throw UsageError(text);
    default:
      throw IoError(static_cast<int>(-code), "{}", text);
  }
}

void throw_write_error(const fs::path& path, std::int64_t code) {
  throw IoError(static_cast<int>(-code), "{}: cannot be written: {}", path.string(), reason(code));
}

File File::open(const fs::path& path) {
  // O_NONBLOCK: opening a named pipe must give an error, not wait for its writer.
  const int fd = file_system().open(path, O_RDONLY | O_NONBLOCK, 0);
  if (fd < 0) throw_read_error(path, fd);
  File file(fd, path);
  const auto kind = file.status().kind;
  if (kind == FileStatus::Kind::kDirectory) throw UsageError("{}: is a directory", path.string());
  if (kind != FileStatus::Kind::kFile) throw UsageError("{}: is not a regular file", path.string());
  return file;
}

File File::append(const fs::path& path) {
  const int fd = file_system().open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd == -ELOOP)
    throw IoError(ELOOP, "{}: is a symbolic link, through which nothing is written; remove it", path.string());
  if (fd < 0) throw_write_error(path, fd);
  File file(fd, path);
  if (file.status().kind != FileStatus::Kind::kFile)
    throw IoError(EINVAL, "{}: cannot be written: it is not a regular file", path.string());
  return file;
}

File File::create_new(const fs::path& path) {
  const int fd = file_system().open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
  if (fd < 0) throw_write_error(path, fd);
  return File(fd, path);
}

File File::temporary_beside(const fs::path& target) {
  const fs::path folder = parent_of(target);
  for (int attempt = 0;; ++attempt) {
    const fs::path part = folder / temporary_name(target.filename().string());
    const int fd = file_system().open(part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd == -EEXIST && attempt < 8) continue;
    if (fd < 0) throw_write_error(target, fd);
    File file(fd, part);
    file.target_ = target;
    return file;
  }
}

File::~File() {
  discard();
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), target_(std::move(other.target_)) {
  other.target_.clear();
}

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  discard();
  fd_ = std::exchange(other.fd_, -1);
  path_ = std::move(other.path_);
  target_ = std::exchange(other.target_, fs::path());
  return *this;
}

void File::discard() noexcept {
  if (fd_ >= 0) file_system().close(std::exchange(fd_, -1));
  if (!target_.empty()) file_system().remove(path_);
  target_.clear();
}

FileStatus File::status() const {
  FileStatus status;
  if (const int code = file_system().status(fd_, status); code < 0) throw_read_error(path_, code);
  return status;
}

std::size_t File::read_some(void* to, std::size_t size, std::int64_t offset) const {
  auto* out = static_cast<char*>(to);
  std::size_t done = 0;
  while (done < size) {
    const std::int64_t got =
        file_system().read(fd_, out + done, std::min(size - done, kTransfer), offset + static_cast<std::int64_t>(done));
    if (got == -EINTR) continue;
    if (got < 0) throw_read_error(path_, got);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void File::read(void* to, std::size_t size, std::int64_t offset) const {
  const std::size_t got = read_some(to, size, offset);
  if (got < size)
    throw DamagedError("{}: ends early, at byte {}", path_.string(), offset + static_cast<std::int64_t>(got));
}

void File::write(std::string_view content) {
  while (!content.empty()) {
    const std::int64_t wrote = file_system().write(fd_, content.data(), std::min(content.size(), kTransfer));
    if (wrote == -EINTR) continue;
    if (wrote <= 0) throw_write_error(target_.empty() ? path_ : target_, wrote < 0 ? wrote : -EIO);
    content.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void File::write_at(const void* from, std::size_t size, std::int64_t offset) {
  const auto* in = static_cast<const char*>(from);
  while (size > 0) {
    const std::int64_t wrote = file_system().write_at(fd_, in, std::min(size, kTransfer), offset);
    if (wrote == -EINTR) continue;
    if (wrote <= 0) throw_write_error(target_.empty() ? path_ : target_, wrote < 0 ? wrote : -EIO);
    in += wrote;
    offset += wrote;
    size -= static_cast<std::size_t>(wrote);
  }
}

void File::allocate(std::int64_t size) {
  int code = 0;
  do code = file_system().allocate(fd_, size);
  while (code == -EINTR);
  if (code == -ENOSPC || code == -EFBIG || code == -EDQUOT)
    throw IoError(-code, "{}: cannot be written: {} ({} bytes needed)", (target_.empty() ? path_ : target_).string(),
                  reason(code), size);
}

void File::sync() {
  int code = 0;
  do code = file_system().sync(fd_);
  while (code == -EINTR);
  if (code < 0) throw_write_error(target_.empty() ? path_ : target_, code);
}

void File::truncate(std::int64_t size) {
  if (const int code = file_system().truncate(fd_, size); code < 0) throw_write_error(path_, code);
}

void File::close() {
  // Linux closes the descriptor even when close is interrupted.
  if (const int code = file_system().close(std::exchange(fd_, -1)); code < 0 && code != -EINTR)
    throw_write_error(target_.empty() ? path_ : target_, code);
}

void File::rename_to_target() {
  close();
  if (const int code = file_system().rename(path_, target_); code < 0)
    throw IoError(-code, "{}: cannot be replaced: {}", target_.string(), reason(code));
  path_ = std::exchange(target_, fs::path());
}

void File::publish() {
  sync();
  rename_to_target();
}

void File::publish_unsynced() {
  rename_to_target();
}

TemporaryDirectory::TemporaryDirectory(const fs::path& target) : target_(target) {
  make_directories(parent_of(target));
  path_ = parent_of(target) / temporary_name(target.filename().string());
  if (const int code = file_system().make_directory(path_, 0755); code < 0) throw_write_error(target, code);
}

TemporaryDirectory::~TemporaryDirectory() {
  if (target_.empty()) return;
  try {
    remove_tree(path_);
  } catch (const Error&) {  // the directory stays under its temporary name
  }
}

void TemporaryDirectory::publish() {
  sync_directory(path_);
  rename_path(path_, target_);
  sync_directory(parent_of(target_));
  target_.clear();
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (const int code = file_system().rename(from, to); code < 0)
    throw IoError(-code, "{}: cannot be renamed to {}: {}", from.string(), to.string(), reason(code));
}

void make_directories(const fs::path& path) {
  if (path.empty()) return;
  int code = file_system().make_directory(path, 0755);
  if (code == -ENOENT && path.has_parent_path() && path.parent_path() != path) {
    make_directories(path.parent_path());
    code = file_system().make_directory(path, 0755);
  }
  // A new directory must itself be durable before its content can be.
  if (code == 0) return sync_directory(parent_of(path));
  // The directory exists already, perhaps as a link to a directory.
  std::error_code ignored;
  if (code == -EEXIST && fs::is_directory(path, ignored)) return;
  if (!path.has_filename()) return make_directories(path.parent_path());  // a trailing separator
  throw IoError(-code, "{}: cannot be created: {}", path.string(), reason(code));
}

void remove_file(const fs::path& path) {
  if (const int code = file_system().remove(path); code < 0 && code != -ENOENT)
    throw IoError(-code, "{}: cannot be removed: {}", path.string(), reason(code));
}

void remove_tree(const fs::path& path) {
  FileStatus status;
  if (const int code = file_system().status(path, status); code < 0) {
    if (code == -ENOENT || code == -ENOTDIR) return;
    throw_read_error(path, code);
  }
  if (status.kind == FileStatus::Kind::kDirectory)
    for (const DirectoryEntry& entry : list_directory(path)) remove_tree(path / entry.name);
  remove_file(path);
}

std::vector<DirectoryEntry> list_directory(const fs::path& path) {
  std::vector<DirectoryEntry> entries;
  if (const int code = file_system().list(path, entries); code < 0) throw_read_error(path, code);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

bool path_exists(const fs::path& path) {
  FileStatus status;
  const int code = file_system().status(path, status);
  if (code == -ENOENT || code == -ENOTDIR) return false;
  if (code < 0) throw_read_error(path, code);
  return true;
}

void sync_directory(const fs::path& directory) {
  const int fd = file_system().open(directory, O_RDONLY | O_DIRECTORY, 0);
  int code = fd;
  if (fd >= 0) {
    code = file_system().sync(fd);
    file_system().close(fd);
  }
  // Some network file systems refuse fsync on a directory; on these the rename itself is durable.
  if (code < 0 && code != -EINVAL) throw IoError(-code, "{}: cannot be flushed: {}", directory.string(), reason(code));
}

}  // namespace molen
