// The one door to the file system: what molen writes, and what it reads back of it, goes through here, so that tests
// can let any call fail, write short, or be the last one before the power goes (base/test_filesystem.h).
//
// FileSystem has one method a system call. File and the functions below are what the rest of the tree uses: whole
// transfers, temporary files that nobody can guess or plant, errors with their own types (base/error.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace molen {

namespace fs = std::filesystem;

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;  // of the entry itself: a symbolic link is none
};

struct FileStatus {
  enum class Kind { kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kOther;
  std::int64_t size = 0;         // bytes
  std::int64_t modified_ns = 0;  // since 1970
  std::uint64_t device = 0, inode = 0;
};

// Each method does what the system call of its name does, once: a transfer may be short or interrupted. They return
// what the call returns (0 or a count), or -errno. Safe to share by threads.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const fs::path& path, int flags, int mode);
  virtual int close(int fd);
  virtual std::int64_t read(int fd, void* to, std::size_t size, std::int64_t offset);  // pread
  virtual std::int64_t write(int fd, const void* from, std::size_t size);              // at the descriptor's position
  virtual std::int64_t write_at(int fd, const void* from, std::size_t size, std::int64_t offset);  // pwrite
  virtual int allocate(int fd, std::int64_t size);                                                 // fallocate
  virtual int sync(int fd);                                                                        // fsync
  virtual int truncate(int fd, std::int64_t size);
  virtual int rename(const fs::path& from, const fs::path& to);
  virtual int exchange(const fs::path& a, const fs::path& b);  // renameat2, RENAME_EXCHANGE
  virtual int link(const fs::path& from, const fs::path& to);  // a second name
  virtual int remove(const fs::path& path);                    // a file, a link or an empty directory
  virtual int make_directory(const fs::path& path, int mode);
  virtual int list(const fs::path& path, std::vector<DirectoryEntry>& entries);  // in no order; a part of it on failure
  virtual int status(int fd, FileStatus& status);                                // fstat
  virtual int status(const fs::path& path, FileStatus& status);                  // lstat
};

// The system's own, or what a test has put in its place.
FileSystem& file_system();

// Puts another one in the system's place for as long as it lives. For tests.
class FileSystemOverride {
 public:
  explicit FileSystemOverride(FileSystem& instead);
  ~FileSystemOverride();
  FileSystemOverride(const FileSystemOverride&) = delete;
  FileSystemOverride& operator=(const FileSystemOverride&) = delete;

 private:
  FileSystem* before_;
};

// What -errno of a read of `path` means, thrown: MissingFileError (nothing there), UsageError (no permission, a
// directory, a loop of links: the path is wrong), IoError (the storage does not answer now).
[[noreturn]] void throw_read_error(const fs::path& path, std::int64_t code);
// The same of a write: IoError.
[[noreturn]] void throw_write_error(const fs::path& path, std::int64_t code);

// An open file. Every method throws as above.
class File {
 public:
  // A regular file; anything else (a pipe, a device) is refused with UsageError, without waiting for it.
  static File open(const fs::path& path);
  // For lines: created where absent, never through a symbolic link; writes go to its end.
  static File append(const fs::path& path);
  // Created; IoError with EEXIST where there is one.
  static File create_new(const fs::path& path);
  // A new file in the directory of `target`, under a name that cannot be guessed, for `publish`. Removed where it was
  // not published.
  static File temporary_beside(const fs::path& target);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const fs::path& path() const { return path_; }
  FileStatus status() const;
  std::int64_t size() const { return status().size; }
  int descriptor() const { return fd_; }  // for calls that are not the file system's (mmap)

  // At most `size` bytes from `offset`; fewer only at the end of the file.
  std::size_t read_some(void* to, std::size_t size, std::int64_t offset) const;
  // `size` bytes from `offset`; DamagedError where the file ends before.
  void read(void* to, std::size_t size, std::int64_t offset) const;
  void write(std::string_view content);
  void write_at(const void* from, std::size_t size, std::int64_t offset);
  // Takes the space ahead where the file system can, so that a full disk is noticed before hours of writing.
  void allocate(std::int64_t size);
  void sync();
  void truncate(std::int64_t size);
  void close();  // the destructor closes too, and is silent about errors
  // Syncs, closes and gives the file its final name at once. The directory still has to be synced.
  void publish();
  // As publish, but without syncing: for what may be lost with the power.
  void publish_unsynced();

 private:
  File(int fd, fs::path path) : fd_(fd), path_(std::move(path)) {}
  void discard() noexcept;
  void rename_to_target();

  int fd_ = -1;
  fs::path path_;    // where it is now
  fs::path target_;  // of a temporary one
};

// A directory beside its target, under a name that cannot be guessed, that gets the target's name when it is whole.
// Removed with all that is in it where it was not published.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const fs::path& target);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const fs::path& path() const { return path_; }
  void publish();  // `target` must not exist, or be an empty directory

 private:
  fs::path path_, target_;
};

// Renames, removals, directories. All throw IoError unless said otherwise.
void rename_path(const fs::path& from, const fs::path& to);
void make_directories(const fs::path& path);  // all that are missing
void remove_file(const fs::path& path);       // nothing there is no error
void remove_tree(const fs::path& path);       // never follows a symbolic link; nothing there is no error
std::vector<DirectoryEntry> list_directory(const fs::path& path);  // by name; throws as a read does
bool path_exists(const fs::path& path);  // false only where it is certain that nothing is there
// Flushes a directory's entries, so that a rename in it survives a power cut.
void sync_directory(const fs::path& directory);

}  // namespace molen
