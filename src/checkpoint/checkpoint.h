// Layout-free checkpoints: what is stored knows tensors by their global names and flattened positions, and nothing of
// ranks.
//
//   step-%09d/
//     rank-%05d.safetensors   the slices one rank gave, under "<tensor>" (the whole tensor) or "<tensor>@<offset>" (a
//     flat slice) index.json              tensor -> dtype, shape, slices {file, entry, offset, count, xxh3 of each
//     block} state.json              step, format, digests of index and attachments, and the caller's own state;
//     written last <attachment>            whole files given by the caller (tokenizer.json, config.toml)
//
// Protocol: everything is written and flushed under "step-%09d.partial"; once all ranks agree, rank 0 checks that the
// slices tile each tensor exactly once, writes index and state, and renames the directory. A directory under its final
// name is complete. Weights stand under their parameter names (arch/parameters.h), so that an export finds them; all
// else (optimizer moments, ...) under names of the caller's choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"

namespace molen::checkpoint {

class SafetensorsFile;

inline constexpr int kFormatVersion = 1;
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 24;  // bytes of a slice under one hash

// A flat slice of one tensor, held by one rank.
struct Span {
  std::string tensor;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::int64_t offset = 0;          // elements, in the flattened tensor
  std::int64_t count = 0;
  const void* data = nullptr;  // `count` elements on the host; or null, and then
  // fills `count` elements from position `offset` of the slice: for what is elsewhere (a device, another file).
  std::function<void(std::int64_t offset, std::int64_t count, void* destination)> read;
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
};

// Collective over the ranks. Returns the checkpoint's path. Throws Error on every rank if any rank fails (disk full,
// ...): then nothing new stands under a final name and older checkpoints are untouched. An existing checkpoint of the
// same step is replaced at once.
fs::path save(const std::vector<Span>& spans, const SaveOptions& options);

struct Slice {
  std::string file, entry;
  std::int64_t offset = 0, count = 0;  // elements of the flattened tensor
  std::vector<std::string> hashes;     // XXH3-128 of each kBlockBytes of the slice
};

struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // by offset, without gap or overlap
  std::int64_t elements() const;
};

// state.json and index.json, read and checked; throw UsageError naming `origin`.
struct StoredState {
  std::int64_t step = 0;
  Json state;                                      // the caller's own
  std::map<std::string, std::string> attachments;  // name -> SHA-256
  std::string index_sha256;
};
StoredState parse_state(std::string_view text, const std::string& origin);
std::map<std::string, StoredTensor> parse_index(std::string_view text, const std::string& origin);

// A complete checkpoint on disk. Every byte handed out was compared with its hash. Safe to share by threads.
class Checkpoint {
 public:
  // Reads state and index and checks them against each other. Throws UsageError naming the file.
  explicit Checkpoint(fs::path path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const fs::path& path() const { return path_; }
  std::int64_t step() const { return step_; }
  const Json& state() const { return state_; }  // as given to save()
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor& tensor(const std::string& name) const;  // throws UsageError with the nearest name
  // `count` elements from flattened position `offset`. Throws UsageError naming file and tensor where a file is
  // missing, short or altered.
  void read(const std::string& name, std::int64_t offset, std::int64_t count, void* destination) const;
  bool has_attachment(const std::string& name) const { return attachments_.contains(name); }
  std::string attachment(const std::string& name) const;  // throws UsageError if it was altered
  std::vector<std::string> attachment_names() const;
  std::int64_t bytes() const;  // of all tensors

 private:
  const SafetensorsFile& file(const std::string& name) const;
  void read_slice(const std::string& name, const StoredTensor& tensor, const Slice& slice, std::int64_t first,
                  std::int64_t last, char* destination) const;

  fs::path path_;
  std::int64_t step_ = 0;
  Json state_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> attachments_;  // name -> SHA-256
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

struct Listed {
  fs::path path;
  std::int64_t step = 0;
  std::string problem;  // empty: state and index are whole (the data is compared while it is read, or by verify)
};
// Every checkpoint under its final name, oldest first; `skipped` takes a line for each unfinished one.
std::vector<Listed> list(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// The newest complete one; `skipped` says what was passed over.
std::optional<fs::path> latest(const fs::path& directory, std::vector<std::string>* skipped = nullptr);
// `path`: a checkpoint, a directory of them (its newest), or a run directory. Throws UsageError if there is none.
fs::path resolve(const fs::path& path, std::vector<std::string>* skipped = nullptr);

struct Verified {
  std::int64_t tensors = 0, bytes = 0, blocks = 0;
  double seconds = 0;
};
// Reads every byte. Throws UsageError naming file and tensor of the first one that is missing, short or altered.
Verified verify(const fs::path& path);

}  // namespace molen::checkpoint
