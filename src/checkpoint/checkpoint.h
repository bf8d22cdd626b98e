// Layout-free checkpoints: they store tensors by global names and boxes of elements, so any layout of ranks can read
// them.
//
//   step-%09d/
//     rank-%05d.safetensors   the boxes that one rank gave
//     index.json              tensor -> dtype, shape, slices {rank, offsets, sizes, xxh3 of each block}
//     state.json              step, format, digests of index and attachments, and the caller's own state; written last
//     <attachment>            whole files given by the caller (tokenizer.json, config.toml)
//
// docs/formats/checkpoint.md has the format. Protocol: all ranks write and flush their files under
// "step-%09d.partial-<token>". Once all ranks agree, rank 0 checks that the slices tile each tensor exactly once,
// writes index and state, and renames the directory. A directory under its final name is complete. Weights have their
// parameter names (arch/parameters.h), so that an export finds them. The caller chooses the names of all other tensors
// (optimizer moments, ...).
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
  // The box's elements on the host, in row-major order. If null, `read` is called: it fills `count` elements from
  // position `first` of the box, for data that is elsewhere (a device, another file).
  const void* data = nullptr;
  std::function<void(std::int64_t first, std::int64_t count, void* destination)> read;
};

// Returns, on every rank, whether `ok` was true on every rank; no rank returns before all have called. For a single
// rank it returns `ok`.
using Agree = std::function<bool(bool ok)>;

struct SaveOptions {
  fs::path directory;  // of all checkpoints of a run; created if absent
  std::int64_t step = 0;
  int rank = 0;
  int ranks = 1;
  Agree agree;                                     // may be empty when ranks == 1
  Json state;                                      // rank 0: the caller's own, returned by Checkpoint::state()
  std::map<std::string, std::string> attachments;  // rank 0: file name -> content
  int keep = 0;                                    // newest complete checkpoints left after this save; 0: all
  // For rank 0, when the directory has a lease (store/lease.h): the lease's fencing token, which separates the files of
  // two owners, and a function that throws if the lease is lost. The function is called before a save begins, before it
  // is published, and before each removal.
  std::int64_t token = 0;
  std::function<void()> still_owner{};
};

// Saves a checkpoint and returns its path. Collective over the ranks. Throws Error on every rank if any rank fails
// (disk full, ...); then there is no new checkpoint, and older ones are untouched. An existing checkpoint of the same
// step is replaced atomically.
fs::path save(const std::vector<Span>& spans, const SaveOptions& options);

// A complete checkpoint on disk. Every byte returned was compared with its hash. Threads may share it.
//
// Throws DamagedError naming file and tensor when the content differs from what was written, IoError when the storage
// does not answer, VersionError when another version of molen wrote it.
class Checkpoint {
 public:
  // Reads state and index and checks them against each other.
  explicit Checkpoint(fs::path path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Returns the same object to all callers of this process while one of them holds it. So state and index, which grow
  // with tensors and ranks, are read and parsed once even when ranks are threads.
  static std::shared_ptr<const Checkpoint> open(const fs::path& path);
  // Returns whether the path still holds the checkpoint that was read, which was neither moved nor replaced.
  bool is_current() const;

  const fs::path& path() const { return path_; }
  std::int64_t step() const { return step_; }
  const Json& state() const { return state_; }  // as given to save()
  const Index& tensors() const { return tensors_; }
  const StoredTensor& tensor(const std::string& name) const;  // throws UsageError with the nearest name

  // The wanted elements of one box in a block: `part` is the box of those elements, a part of wanted[i] (i is the
  // member `wanted`). They lie in the box `held`, whose elements follow each other in the block from element `first`
  // on.
  struct Part {
    std::size_t wanted = 0;
    Box part, held;
    std::int64_t first = 0;
  };
  // A block that holds wanted elements: elements [first, first + count) of a slice's entry.
  struct Block {
    const Slice* slice = nullptr;
    std::int64_t number = 0, first = 0, count = 0;
    std::vector<Part> parts;
    bool whole = false;  // all its elements are wanted (if the wanted boxes do not overlap)
  };
  // Returns the blocks of a tensor that hold wanted elements, in the order of its slices. Reads nothing: all ranks
  // compute the same blocks.
  std::vector<Block> blocks(const std::string& name, std::span<const Box> wanted) const;
  // Reads one of these blocks and compares it with its hash.
  std::vector<char> content(const std::string& name, const Block& block) const;

  // Receives `part`, a part of wanted[i]. `data` holds the elements of the box `held`, in which `part` lies (copy_box).
  using Take = std::function<void(std::size_t i, const Box& part, const Box& held, const void* data)>;
  // Reads and hashes each file block that holds wanted elements once.
  void read(const std::string& name, std::span<const Box> wanted, const Take& take) const;
  // Reads `count` elements from flattened position `first`, one after the other. Keeps the last blocks, so that
  // sequential reading reads no block twice.
  void read(const std::string& name, std::int64_t first, std::int64_t count, void* destination) const;

  bool has_attachment(const std::string& name) const { return attachments_.contains(name); }
  std::string attachment(const std::string& name) const;
  std::vector<std::string> attachment_names() const;
  std::int64_t bytes() const;  // of all tensors

 private:
  struct Kept;
  const SafetensorsFile& file(int rank) const;
  std::shared_ptr<const std::vector<char>> kept_content(const std::string& name, const Block& block) const;

  fs::path path_;
  FileStatus status_;  // of state.json when it was read
  std::int64_t step_ = 0;
  Json state_;
  Index tensors_;
  std::map<std::string, std::string> attachments_;  // name -> SHA-256
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<SafetensorsFile>> files_;
  mutable std::vector<Kept> kept_;  // blocks of which only a part was wanted, the most recently used last
};

enum class Problem { kNone, kDamaged, kUnreadable, kOtherVersion };
struct Listed {
  fs::path path;
  std::int64_t step = 0;
  Problem problem =
      Problem::kNone;  // kNone: state and index are whole (the data is compared while it is read, or by verify)
  std::string text;    // description of the problem
};
// Opens every checkpoint under its final name, oldest first; `skipped` receives a line for each unfinished and each
// set-aside checkpoint. Throws IoError when the directory cannot be read; an absent directory gives an empty list.
std::vector<Listed> list(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// Returns the newest complete checkpoint; `skipped` names the damaged ones that were passed over. Throws IoError and
// VersionError when it cannot be known which checkpoint is the newest usable one.
std::optional<fs::path> latest(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// Returns the checkpoint that `path` names: the path itself, or the newest in a directory of checkpoints or in a run
// directory. Throws UsageError if there is none.
fs::path resolve(const fs::path& path, std::vector<std::string>* skipped = nullptr);

struct Verified {
  std::int64_t tensors = 0, bytes = 0, blocks = 0;
  double seconds = 0;
};
// Reads every byte. Throws the errors of Checkpoint.
Verified verify(const fs::path& path);

}  // namespace molen::checkpoint
