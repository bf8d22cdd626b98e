// A file system that fails on demand, for tests. It passes every call to the real file system under `root`, numbers the
// calls that change something, and can
//   - make one call, or all from one on, fail with an errno;
//   - write a few bytes at a time, and interrupt every transfer once;
//   - cut the power before a call: later calls do nothing, and `lay_out` writes what a disk would still hold.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/filesystem.h"

namespace molen {

// The real file system without waiting for the disk. For the preparation of a test.
class UnsyncedFileSystem : public FileSystem {
 public:
  int sync(int) override { return 0; }
};

class FaultyFileSystem : public FileSystem {
 public:
  // The present content of `root` counts as durable.
  explicit FaultyFileSystem(fs::path root) : root_(std::move(root)) { nodes_.push_back(adopt(root_)); }

  // Returns the number of changing calls so far, which is the number of the next such call.
  std::int64_t calls() const { return calls_; }
  std::int64_t bytes_read() const { return bytes_read_; }
  std::int64_t opened_at_once() const { return most_open_; }
  const std::vector<std::string>& log() const { return log_; }

  void fail_at(std::int64_t call, int code) { fail_first_ = call, fail_last_ = call, code_ = code; }
  void fail_from(std::int64_t call, int code) { fail_first_ = call, fail_last_ = INT64_MAX, code_ = code; }
  void cut_at(std::int64_t call) { cut_ = call; }
  bool was_cut() const { return calls_ > cut_; }
  void write_short(std::size_t most) { most_ = most; }
  void interrupt() { interrupt_ = true; }
  // Called for each open and read; a negative result is returned instead of the call's own.
  std::function<int(const fs::path&)> on_open, on_list;
  std::function<int(const fs::path&)> on_read;

  enum class Durable { kSynced, kEntries, kRandom, kAsWritten };
  // The content of the disk after the power cut. kSynced: only contents and directory entries that fsync made durable.
  // kEntries: all entries as they were, with contents of their last fsync. kRandom: a random choice of these two for
  // each directory and file. kAsWritten: everything that was written. This is what kill -9 leaves, because the kernel
  // keeps the writes of a process that it kills.
  void lay_out(const fs::path& to, Durable which, std::uint64_t seed = 0) {
    const std::lock_guard lock(mutex_);
    std::mt19937_64 random(seed);
    places_.clear();
    locate(0, root_);
    lay_out(0, to, which, random);
  }

  int open(const fs::path& path, int flags, int mode) override {
    const std::lock_guard lock(mutex_);
    if (on_open)
      if (const int code = on_open(path); code < 0) return code;
    const bool creates = (flags & O_CREAT) != 0 && !exists(path);
    if (creates)
      if (const int code = next("create", path); code < 0) return code;
    if (dead()) return -EIO;
    const int fd = FileSystem::open(path, flags, mode);
    if (fd < 0) return fd;
    if (creates) enter(path, new_node(false));
    paths_[fd] = path;
    files_[fd] = find(path);
    most_open_ = std::max(most_open_, static_cast<std::int64_t>(paths_.size()));
    return fd;
  }
  int close(int fd) override {
    const std::lock_guard lock(mutex_);
    paths_.erase(fd);
    files_.erase(fd);
    return FileSystem::close(fd);
  }
  std::int64_t read(int fd, void* to, std::size_t size, std::int64_t offset) override {
    {
      const std::lock_guard lock(mutex_);
      if (dead()) return -EIO;
      if (interrupted(fd)) return -EINTR;
      if (on_read && paths_.contains(fd))
        if (const int code = on_read(paths_[fd]); code < 0) return code;
    }
    const std::int64_t got = FileSystem::read(fd, to, size, offset);
    const std::lock_guard lock(mutex_);
    bytes_read_ += std::max<std::int64_t>(0, got);
    return got;
  }
  std::int64_t write(int fd, const void* from, std::size_t size) override {
    const std::lock_guard lock(mutex_);
    if (interrupted(fd)) return -EINTR;
    if (const int code = next("write", paths_[fd]); code < 0) return code;
    return FileSystem::write(fd, from, std::min(size, most_));
  }
  std::int64_t write_at(int fd, const void* from, std::size_t size, std::int64_t offset) override {
    const std::lock_guard lock(mutex_);
    if (interrupted(fd)) return -EINTR;
    if (const int code = next("write", paths_[fd]); code < 0) return code;
    return FileSystem::write_at(fd, from, std::min(size, most_), offset);
  }
  int allocate(int fd, std::int64_t size) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("allocate", paths_[fd]); code < 0) return code;
    return FileSystem::allocate(fd, size);
  }
  int sync(int fd) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("sync", paths_[fd]); code < 0) return code;
    if (files_.contains(fd) && files_[fd] != kNone) {
      Node& synced = node(files_[fd]);
      if (synced.is_directory)
        synced.durable = synced.entries;
      else
        synced.content = content_of(fd);
    }
    return 0;  // the page cache is enough for a test
  }
  int truncate(int fd, std::int64_t size) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("truncate", paths_[fd]); code < 0) return code;
    return FileSystem::truncate(fd, size);
  }
  int rename(const fs::path& from, const fs::path& to) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("rename", to); code < 0) return code;
    const int code = FileSystem::rename(from, to);
    if (code == 0) {
      const int moved = find(from);
      leave(from);
      enter(to, moved);
    }
    return code;
  }
  int exchange(const fs::path& a, const fs::path& b) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("exchange", b); code < 0) return code;
    const int code = no_exchange ? -EINVAL : FileSystem::exchange(a, b);
    if (code == 0) {
      const int first = find(a), second = find(b);
      enter(a, second);
      enter(b, first);
    }
    return code;
  }
  int link(const fs::path& from, const fs::path& to) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("link", to); code < 0) return code;
    const int code = FileSystem::link(from, to);
    if (code == 0) enter(to, find(from));
    return code;
  }
  int remove(const fs::path& path) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("remove", path); code < 0) return code;
    const int code = FileSystem::remove(path);
    if (code == 0) leave(path);
    return code;
  }
  int make_directory(const fs::path& path, int mode) override {
    const std::lock_guard lock(mutex_);
    if (const int code = next("mkdir", path); code < 0) return code;
    const int code = FileSystem::make_directory(path, mode);
    if (code == 0) enter(path, new_node(true));
    return code;
  }
  int list(const fs::path& path, std::vector<DirectoryEntry>& entries) override {
    if (dead()) return -EIO;
    const int code = FileSystem::list(path, entries);
    if (on_list)
      if (const int wanted = on_list(path); wanted < 0) return wanted;
    return code;
  }
  using FileSystem::status;

  bool no_exchange = false;  // a file system without RENAME_EXCHANGE

 private:
  struct Node {
    bool is_directory = false;
    std::string content;                 // as of the last sync
    std::map<std::string, int> entries;  // of a directory: name -> node
    std::map<std::string, int> durable;  // entries at its last sync
  };

  static bool exists(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(path, ignored));
  }
  bool dead() const { return calls_ > cut_; }
  bool interrupted(int fd) {
    if (!interrupt_) return false;
    const bool first = interrupted_.insert(fd).second;
    if (!first) interrupted_.erase(fd);
    return first;
  }

  // Returns the result of a changing call that must end at once; 0 to continue.
  int next(const char* what, const fs::path& path) {
    const std::int64_t number = calls_++;
    log_.push_back(std::string(what) + " " + path.lexically_relative(root_).string());
    if (number >= cut_) return -EIO;
    if (number >= fail_first_ && number <= fail_last_) return -code_;
    return 0;
  }

  std::string content_of(int fd) {
    std::string content;
    std::vector<char> block(1 << 16);
    for (std::int64_t got;
         (got = FileSystem::read(fd, block.data(), block.size(), static_cast<std::int64_t>(content.size()))) > 0;)
      content.append(block.data(), static_cast<std::size_t>(got));
    return content;
  }

  // Makes a node for an existing file or directory, durable as it is. The root's node must be the first.
  Node adopt(const fs::path& path) {
    Node node;
    node.is_directory = fs::is_directory(path);
    if (node.is_directory) {
      for (const auto& entry : fs::directory_iterator(path)) {
        Node child = adopt(entry.path());
        adopted_.push_back(std::move(child));
        node.entries[entry.path().filename().string()] = -static_cast<int>(adopted_.size());
      }
      node.durable = node.entries;
    } else {
      const int fd = FileSystem::open(path, O_RDONLY, 0);
      node.content = content_of(fd);
      FileSystem::close(fd);
    }
    return node;
  }
  // Adopted nodes are numbered -1, -2, ...: they existed before the root's node.
  Node& node(int id) {
    return id < 0 ? adopted_[static_cast<std::size_t>(-id - 1)] : nodes_[static_cast<std::size_t>(id)];
  }
  static constexpr int kNone = INT32_MIN;

  int new_node(bool is_directory) {
    nodes_.push_back({is_directory, "", {}, {}});
    return static_cast<int>(nodes_.size()) - 1;
  }
  int find(const fs::path& path) {
    const fs::path relative = path.lexically_normal().lexically_relative(root_.lexically_normal());
    if (relative.empty() || *relative.begin() == "..") return kNone;
    int at = 0;
    for (const fs::path& part : relative) {
      if (part == "." || part.empty()) continue;
      const auto& entries = node(at).entries;
      const auto found = entries.find(part.string());
      if (found == entries.end()) return kNone;
      at = found->second;
    }
    return at;
  }
  void enter(const fs::path& path, int child) {
    const int parent = find(path.parent_path());
    if (parent != kNone && child != kNone) node(parent).entries[path.filename().string()] = child;
  }
  void leave(const fs::path& path) {
    if (const int parent = find(path.parent_path()); parent != kNone)
      node(parent).entries.erase(path.filename().string());
  }

  // Records the current path of each node that still has a name.
  void locate(int id, const fs::path& now) {
    places_[id] = now;
    for (const auto& [name, child] : node(id).entries) locate(child, now / name);
  }

  void lay_out(int id, const fs::path& to, Durable which, std::mt19937_64& random) {
    const Node& n = node(id);
    const bool durable = which == Durable::kSynced || (which == Durable::kRandom && random() % 2 == 0);
    if (n.is_directory) {
      fs::create_directories(to);
      for (const auto& [name, child] : which == Durable::kEntries || !durable ? n.entries : n.durable)
        lay_out(child, to / name, which, random);
      return;
    }
    // Content that was not synced may have reached the disk anyway.
    std::string content = n.content;
    if ((which == Durable::kAsWritten || (which == Durable::kRandom && !durable)) && places_.contains(id)) {
      const int fd = FileSystem::open(places_[id], O_RDONLY, 0);
      content = content_of(fd);
      FileSystem::close(fd);
    }
    const int fd = FileSystem::open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (std::size_t done = 0; done < content.size();) {
      const std::int64_t wrote = FileSystem::write(fd, content.data() + done, content.size() - done);
      if (wrote <= 0) break;
      done += static_cast<std::size_t>(wrote);
    }
    FileSystem::close(fd);
  }

  const fs::path root_;
  std::vector<Node> adopted_, nodes_;
  std::mutex mutex_;
  std::map<int, fs::path> paths_;
  std::map<int, int> files_;
  std::map<int, fs::path> places_;
  std::set<int> interrupted_;
  std::vector<std::string> log_;
  std::int64_t calls_ = 0, cut_ = INT64_MAX - 1, fail_first_ = INT64_MAX, fail_last_ = -1, bytes_read_ = 0,
               most_open_ = 0;
  std::size_t most_ = SIZE_MAX;
  int code_ = 0;
  bool interrupt_ = false;
};

}  // namespace molen
