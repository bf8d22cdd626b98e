// The access to the file system: all of molen's writes, and all its reads of those files, go through here. The records
// of the flight recorder and the last readings of meters are the exception: they are stores into mapped pages
// (store/mapped_file.h). Tests can thus make any
// call fail, write short, or be the last before a power cut (base/test_filesystem.h).
//
// FileSystem has one method per system call. The rest of the tree uses File and the functions below: whole transfers,
// temporary files with names that nobody can guess or plant, errors with their own types (base/error.h).
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
  bool is_directory = false;  // of the entry itself; false for a symbolic link
};

struct FileStatus {
  enum class Kind { kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kOther;
  std::int64_t size = 0;         // bytes
  std::int64_t modified_ns = 0;  // since 1970
  std::uint64_t device = 0, inode = 0;
};

// Each method makes the system call of its name once, so a transfer may be short or interrupted. It returns the call's
// result (0 or a count), or -errno. Threads may share it.
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
  virtual int link(const fs::path& from, const fs::path& to);  // a hard link
  virtual int remove(const fs::path& path);                    // a file, a link or an empty directory
  virtual int make_directory(const fs::path& path, int mode);
  virtual int list(const fs::path& path, std::vector<DirectoryEntry>& entries);  // in no order; incomplete on failure
  virtual int status(int fd, FileStatus& status);                                // fstat
  virtual int status(const fs::path& path, FileStatus& status);                  // lstat
};

// Returns the system's file system, or the replacement of a test.
FileSystem& file_system();

// Replaces the system's file system while it lives. For tests.
class FileSystemOverride {
 public:
  explicit FileSystemOverride(FileSystem& instead);
  ~FileSystemOverride();
  FileSystemOverride(const FileSystemOverride&) = delete;
  FileSystemOverride& operator=(const FileSystemOverride&) = delete;

 private:
  FileSystem* before_;
};

// Throws the error for -errno of a read of `path`: MissingFileError (nothing there), UsageError (no permission, a
// directory, a loop of links: the path is wrong), IoError (the storage does not answer now).
[[noreturn]] void throw_read_error(const fs::path& path, std::int64_t code);
// Throws the error for -errno of a write: IoError.
[[noreturn]] void throw_write_error(const fs::path& path, std::int64_t code);

// An open file. Every method throws the errors above.
class File {
 public:
  // Opens a regular file; refuses anything else (a pipe, a device) with UsageError, without waiting for it.
  static File open(const fs::path& path);
  // Opens for appending lines: creates the file if absent, never follows a symbolic link; writes go to its end.
  static File append(const fs::path& path);
  // Creates the file; throws IoError with EEXIST when it exists.
  static File create_new(const fs::path& path);
  // Creates a new file in the directory of `target`, under a name that cannot be guessed, for `publish`. The destructor
  // removes it if it was not published.
  static File temporary_beside(const fs::path& target);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const fs::path& path() const { return path_; }
  FileStatus status() const;
  std::int64_t size() const { return status().size; }
  int descriptor() const { return fd_; }  // for calls outside the file system interface (mmap)

  // Reads at most `size` bytes from `offset`; fewer only at the end of the file.
  std::size_t read_some(void* to, std::size_t size, std::int64_t offset) const;
  // Reads `size` bytes from `offset`; throws DamagedError when the file ends earlier.
  void read(void* to, std::size_t size, std::int64_t offset) const;
  void write(std::string_view content);
  void write_at(const void* from, std::size_t size, std::int64_t offset);
  // Reserves the space if the file system can, so that a full disk is detected before hours of writing.
  void allocate(std::int64_t size);
  void sync();
  void truncate(std::int64_t size);
  void close();  // the destructor closes too, but ignores errors
  // Syncs, closes and atomically gives the file its final name. The caller must still sync the directory.
  void publish();
  // Does the same without the sync, for files that a power cut may lose.
  void publish_unsynced();

 private:
  File(int fd, fs::path path) : fd_(fd), path_(std::move(path)) {}
  void discard() noexcept;
  void rename_to_target();

  int fd_ = -1;
  fs::path path_;    // current path
  fs::path target_;  // of a temporary file
};

// A directory beside its target, under a name that cannot be guessed; `publish` renames it to the target. The
// destructor removes it with its content if it was not published.
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

// Rename, remove and list. All throw IoError unless said otherwise.
void rename_path(const fs::path& from, const fs::path& to);
void make_directories(const fs::path& path);  // creates all missing ones
void remove_file(const fs::path& path);       // no error when it does not exist
void remove_tree(const fs::path& path);       // never follows a symbolic link; no error when it does not exist
std::vector<DirectoryEntry> list_directory(const fs::path& path);  // sorted by name; throws like a read
bool path_exists(const fs::path& path);  // false only when it is certain that nothing exists there
// Flushes a directory's entries, so that a rename in it survives a power cut.
void sync_directory(const fs::path& directory);

}  // namespace molen
