// Layout-free checkpoints: what is stored knows tensors by their global names and boxes of their elements, and nothing
// of ranks.
//
//   step-%09d/
//     rank-%05d.safetensors   the boxes that one rank gave
//     index.json              tensor -> dtype, shape, slices {rank, offsets, sizes, xxh3 of each block}
//     state.json              step, format, digests of index and attachments, and the caller's own state; written last
//     <attachment>            whole files given by the caller (tokenizer.json, config.toml)
//
// docs/formats/checkpoint.md has the format. Protocol: everything is written and flushed under
// "step-%09d.partial-<token>"; once all ranks agree, rank 0 checks that the slices tile each tensor exactly once,
// writes index and state, and renames the directory. A directory under its final name is complete. Weights stand under
// their parameter names (arch/parameters.h), so that an export finds them; all else (optimizer moments, ...) under
// names of the caller's choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/index.h"

namespace molen::checkpoint {

class SafetensorsFile;

// A box of one tensor, held by one rank.
struct Span {
  std::string tensor;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  Box box;
  const void* data = nullptr;  // the box's elements on the host, in row-major order; or null, and then
  // fills `count` elements from position `first` of the box: for what is elsewhere (a device, another file).
  std::function<void(std::int64_t first, std::int64_t count, void* destination)> read;
};

// True on every rank if `ok` was true on every rank; no rank returns before all have called. One rank alone: the
// identity.
using Agree = std::function<bool(bool ok)>;

struct SaveOptions {
  fs::path directory;  // of all checkpoints of a run; created where absent
  std::int64_t step = 0;
  int rank = 0;
  int ranks = 1;
  Agree agree;                                     // may be empty where ranks == 1
  Json state;                                      // rank 0: the caller's own, returned by Checkpoint::state()
  std::map<std::string, std::string> attachments;  // rank 0: file name -> content
  int keep = 0;                                    // newest complete checkpoints left after this one is saved; 0: all
  // Rank 0, where the directory has a lease (store/lease.h): its fencing token, which keeps what two owners write
  // apart, and what throws if the lease is lost; called before a save begins, before it is published, and before each
  // removal.
  std::int64_t token = 0;
  std::function<void()> still_owner{};
};

// Collective over the ranks. Returns the checkpoint's path. Throws Error on every rank if any rank fails (disk full,
// ...): then nothing new stands under a final name and older checkpoints are untouched. An existing checkpoint of the
// same step is replaced at once.
fs::path save(const std::vector<Span>& spans, const SaveOptions& options);

// A complete checkpoint on disk. Every byte handed out was compared with its hash. Safe to share by threads.
//
// Throws DamagedError naming file and tensor where the content is not what was written, IoError where the storage does
// not answer, VersionError where another version of molen wrote it.
class Checkpoint {
 public:
  // Reads state and index and checks them against each other.
  explicit Checkpoint(fs::path path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // The same object for all of this process that ask while one of them holds it, so that state and index, which grow
  // with tensors and ranks, are read and parsed once, also by ranks that are threads.
  static std::shared_ptr<const Checkpoint> open(const fs::path& path);
  // Under this path still stands what was read: nobody has moved or replaced it.
  bool is_current() const;

  const fs::path& path() const { return path_; }
  std::int64_t step() const { return step_; }
  const Json& state() const { return state_; }  // as given to save()
  const Index& tensors() const { return tensors_; }
  const StoredTensor& tensor(const std::string& name) const;  // throws UsageError with the nearest name

  // Takes what is read of wanted[i]: the elements of `part`, which lie at `data` as a part of the box `held`
  // (copy_box).
  using Take = std::function<void(std::size_t i, const Box& part, const Box& held, const void* data)>;
  // Each block of the files that holds something wanted is read once and hashed once.
  void read(const std::string& name, std::span<const Box> wanted, const Take& take) const;
  // `count` elements from flattened position `first`, one after the other. The blocks read last are kept, so that
  // reading on costs no block twice.
  void read(const std::string& name, std::int64_t first, std::int64_t count, void* destination) const;

  bool has_attachment(const std::string& name) const { return attachments_.contains(name); }
  std::string attachment(const std::string& name) const;
  std::vector<std::string> attachment_names() const;
  std::int64_t bytes() const;  // of all tensors

 private:
  struct Kept;
  const SafetensorsFile& file(int rank) const;
  std::shared_ptr<const std::vector<char>> block(const std::string& name, const StoredTensor& tensor,
                                                 const Slice& slice, std::int64_t number, bool keep) const;
  void read_slice(const std::string& name, const StoredTensor& tensor, const Slice& slice, std::span<const Box> wanted,
                  const Take& take, bool keep) const;
  void read_boxes(const std::string& name, std::span<const Box> wanted, const Take& take, bool keep) const;

  fs::path path_;
  FileStatus status_;  // of state.json as it was read
  std::int64_t step_ = 0;
  Json state_;
  Index tensors_;
  std::map<std::string, std::string> attachments_;  // name -> SHA-256
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<SafetensorsFile>> files_;
  mutable std::vector<Kept> kept_;  // blocks of which only a part was wanted, the last used at the end
};

enum class Problem { kNone, kDamaged, kUnreadable, kOtherVersion };
struct Listed {
  fs::path path;
  std::int64_t step = 0;
  Problem problem =
      Problem::kNone;  // kNone: state and index are whole (the data is compared while it is read, or by verify)
  std::string text;    // what the problem is
};
// Every checkpoint under its final name, oldest first, each opened; `skipped` takes a line for each unfinished and
// each set-aside one. Throws IoError where the directory cannot be read; an absent one is empty.
std::vector<Listed> list(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// The newest complete one; `skipped` says which damaged ones were passed over. Throws IoError and VersionError where it
// cannot be known which is the newest that is usable.
std::optional<fs::path> latest(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// `path`: a checkpoint, a directory of them (its newest), or a run directory. Throws UsageError if there is none.
fs::path resolve(const fs::path& path, std::vector<std::string>* skipped = nullptr);

struct Verified {
  std::int64_t tensors = 0, bytes = 0, blocks = 0;
  double seconds = 0;
};
// Reads every byte. Throws as Checkpoint does.
Verified verify(const fs::path& path);

}  // namespace molen::checkpoint
