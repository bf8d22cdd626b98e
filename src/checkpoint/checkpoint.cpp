// Loading: state and index are read whole and checked; data is read in blocks, which are compared with their hashes.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "base/suggest.h"
#include "checkpoint/folder.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

constexpr std::size_t kKeptBlocks = 16;

// Opens a file that belongs to a checkpoint. If it is missing, the checkpoint is damaged; if it may not be opened, that
// proves nothing.
File open_member(const fs::path& path) {
  try {
    return File::open(path);
  } catch (const MissingFileError& error) {
    throw DamagedError("{}", error.what());
  } catch (const UsageError& error) {
    throw IoError(EACCES, "{}", error.what());
  }
}

std::string read_member(const fs::path& path, std::int64_t limit, FileStatus* status = nullptr) {
  const File file = open_member(path);
  if (status) *status = file.status();
  const std::int64_t size = file.size();
  if (size > limit) throw DamagedError("{}: {} bytes, more than the limit of {}", path.string(), size, limit);
  std::string content(static_cast<std::size_t>(size), '\0');
  file.read(content.data(), content.size(), 0);
  return content;
}

// Reports a parser's refusal of a checkpoint's own file as damage.
template <class F>
auto damaged_where_refused(F&& parse) {
  try {
    return parse();
  } catch (const UsageError& error) {
    throw DamagedError("{}", error.what());
  }
}

// Finds the parts of the wanted boxes that lie in the block. Only the boxes numbered in `touching` can have any.
void find_parts(Checkpoint::Block& block, std::span<const Box> wanted, std::span<const std::size_t> touching) {
  std::int64_t begin = 0;  // of the box in the entry
  for (const Box& box : block.slice->boxes) {
    const std::int64_t n = box.elements(), from = std::max(block.first, begin),
                       to = std::min(block.first + block.count, begin + n);
    std::int64_t at = from - block.first;
    if (from < to)
      for (const Box& held : boxes_of_run(box, from - begin, to - from)) {
        std::int64_t covered = 0;
        for (const std::size_t i : touching)
          if (auto part = intersection(held, wanted[i])) {
            covered += part->elements();
            block.parts.push_back({i, std::move(*part), held, at});
          }
        block.whole &= covered >= held.elements();
        at += held.elements();
      }
    begin += n;
  }
}

}  // namespace

struct Checkpoint::Kept {
  const Slice* slice;
  std::int64_t number;
  std::shared_ptr<const std::vector<char>> content;
};

Checkpoint::~Checkpoint() = default;

Checkpoint::Checkpoint(fs::path path) : path_(std::move(path)) {
  const fs::path state = path_ / "state.json", index = path_ / "index.json";
  StoredState stored =
      damaged_where_refused([&] { return parse_state(read_member(state, kMaxStateBytes, &status_), state.string()); });
  step_ = stored.step;
  state_ = std::move(stored.state);
  attachments_ = std::move(stored.attachments);
  const File file = open_member(index);
  if (file.size() > kMaxIndexBytes)
    throw DamagedError("{}: {} bytes, more than the limit of {}", index.string(), file.size(), kMaxIndexBytes);
  tensors_ = damaged_where_refused([&] { return read_index(file, stored.index_sha256); });
}

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& path) {
  static std::mutex mutex;
  static std::map<fs::path, std::weak_ptr<const Checkpoint>> opened;
  const std::lock_guard lock(mutex);
  if (auto held = opened[path].lock()) return held;
  auto made = std::make_shared<const Checkpoint>(path);
  opened[path] = made;
  return made;
}

bool Checkpoint::is_current() const {
  FileStatus now;
  const int code = file_system().status(path_ / "state.json", now);
  if (code == -ENOENT || code == -ENOTDIR) return false;
  if (code < 0) throw_read_error(path_ / "state.json", code);
  return now.inode == status_.inode && now.device == status_.device && now.size == status_.size &&
         now.modified_ns == status_.modified_ns;
}

const StoredTensor& Checkpoint::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, unused] : tensors_) names.push_back(known);
  throw UsageError("{}: no tensor '{}'{}", path_.string(), name, did_you_mean(name, names));
}

const SafetensorsFile& Checkpoint::file(int rank) const {
  const std::lock_guard lock(mutex_);
  auto& file = files_[rank];
  if (!file)
    file =
        damaged_where_refused([&] { return std::make_unique<SafetensorsFile>(open_member(path_ / rank_file(rank))); });
  return *file;
}

std::vector<Checkpoint::Block> Checkpoint::blocks(const std::string& name, std::span<const Box> wanted) const {
  const StoredTensor& stored = tensor(name);
  for (const Box& box : wanted)
    MOLEN_CHECK(box.sizes.size() == stored.shape.size() &&
                    (box.elements() == 0 || intersection(box, whole_box(stored.shape)) == box),
                "box {} of tensor '{}' [{}]", text_of(box), name, fmt::join(stored.shape, ", "));
  std::vector<Block> found;
  for (const Slice& slice : stored.slices) {
    std::vector<std::size_t> touching;  // the wanted boxes that have elements in the slice
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (std::any_of(slice.boxes.begin(), slice.boxes.end(),
                      [&](const Box& box) { return intersection(box, wanted[i]).has_value(); }))
        touching.push_back(i);
    if (touching.empty()) continue;
    const std::int64_t per_block = kBlockBytes / size_of(stored.dtype), elements = slice.elements();
    for (std::int64_t number = 0; number * per_block < elements; ++number) {
      const std::int64_t first = number * per_block;
      Block block{&slice, number, first, std::min(per_block, elements - first), {}, true};
      find_parts(block, wanted, touching);
      if (!block.parts.empty()) found.push_back(std::move(block));
    }
  }
  return found;
}

std::vector<char> Checkpoint::content(const std::string& name, const Block& block) const {
  const StoredTensor& stored = tensor(name);
  const SafetensorsFile& source = file(block.slice->rank);
  const TensorInfo* entry = source.find(block.slice->entry);
  if (!entry || entry->dtype != stored.dtype || entry->elements() != block.slice->elements())
    throw DamagedError("{}: entry '{}' is not what index.json says of tensor '{}'", source.path().string(),
                       block.slice->entry, name);
  std::vector<char> content(static_cast<std::size_t>(block.count * size_of(stored.dtype)));
  source.read(*entry, block.first, block.count, content.data());
  if (xxh3_hex(content.data(), content.size()) != block.slice->hashes[static_cast<std::size_t>(block.number)])
    throw DamagedError("{}: tensor '{}' does not match its hash: the file is damaged; use another checkpoint",
                       source.path().string(), name);
  return content;
}

// Returns the block's content, and keeps it if a later read needs it too.
std::shared_ptr<const std::vector<char>> Checkpoint::kept_content(const std::string& name, const Block& block) const {
  if (block.whole) return std::make_shared<const std::vector<char>>(content(name, block));
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& k) { return k.slice == block.slice && k.number == block.number; });
    if (found != kept_.end()) {
      std::rotate(found, found + 1, kept_.end());
      return kept_.back().content;
    }
  }
  auto read = std::make_shared<const std::vector<char>>(content(name, block));
  const std::lock_guard lock(mutex_);
  if (kept_.size() == kKeptBlocks) kept_.erase(kept_.begin());
  kept_.push_back({block.slice, block.number, read});
  return read;
}

void Checkpoint::read(const std::string& name, std::span<const Box> wanted, const Take& take) const {
  const std::int64_t size = size_of(tensor(name).dtype);
  for (const Block& block : blocks(name, wanted)) {
    const std::vector<char> read = content(name, block);
    for (const Part& p : block.parts) take(p.wanted, p.part, p.held, read.data() + p.first * size);
  }
}

void Checkpoint::read(const std::string& name, std::int64_t first, std::int64_t count, void* destination) const {
  const StoredTensor& stored = tensor(name);
  MOLEN_CHECK(first >= 0 && count >= 0 && first <= stored.elements() && count <= stored.elements() - first,
              "range [{}, +{}) of tensor '{}' with {} elements", first, count, name, stored.elements());
  const std::int64_t size = size_of(stored.dtype);
  const Box whole = whole_box(stored.shape);
  const std::vector<Box> wanted = boxes_of_run(whole, first, count);
  for (const Block& block : blocks(name, wanted)) {
    const auto read = kept_content(name, block);
    for (const Part& p : block.parts) {
      auto* to = static_cast<char*>(destination) + (position_in(whole, wanted[p.wanted]) - first) * size;
      copy_box(p.part, p.held, read->data() + p.first * size, wanted[p.wanted], to, size);
    }
  }
}

std::string Checkpoint::attachment(const std::string& name) const {
  const auto found = attachments_.find(name);
  if (found == attachments_.end()) throw UsageError("{}: no attached file '{}'", path_.string(), name);
  std::string content = read_member(path_ / name, std::int64_t{1} << 30);
  if (sha256_hex(content) != found->second)
    throw DamagedError("{}: does not match its hash: the file was altered", (path_ / name).string());
  return content;
}

std::vector<std::string> Checkpoint::attachment_names() const {
  std::vector<std::string> names;
  for (const auto& [name, hash] : attachments_) names.push_back(name);
  return names;
}

std::int64_t Checkpoint::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.elements() * size_of(tensor.dtype);
  return sum;
}

std::vector<Listed> list(const fs::path& directory, std::vector<std::string>* skipped) {
  std::vector<Listed> found;
  for (const Step& step : steps_in(directory)) {
    Listed listed{step.path, step.step, Problem::kNone, ""};
    try {
      const Checkpoint checkpoint(step.path);
      if (checkpoint.step() != step.step)
        throw DamagedError("{}: holds step {}", step.path.string(), checkpoint.step());
    } catch (const DamagedError& error) {
      listed.problem = Problem::kDamaged, listed.text = error.what();
    } catch (const VersionError& error) {
      listed.problem = Problem::kOtherVersion, listed.text = error.what();
    } catch (const IoError& error) {
      listed.problem = Problem::kUnreadable, listed.text = error.what();
    }
    found.push_back(std::move(listed));
  }
  if (skipped) {
    for (const fs::path& path : unfinished_in(directory))
      skipped->push_back(fmt::format("{}: unfinished, skipped", path.string()));
    for (const Step& step : damaged_in(directory))
      skipped->push_back(fmt::format("{}: set aside as damaged", step.path.string()));
  }
  return found;
}

std::optional<fs::path> latest(const fs::path& directory, std::vector<std::string>* skipped) {
  if (skipped)
    for (const fs::path& path : unfinished_in(directory))
      skipped->push_back(fmt::format("{}: unfinished, skipped", path.string()));
  const std::vector<Step> steps = steps_in(directory);
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    try {
      if (const Checkpoint checkpoint(it->path); checkpoint.step() == it->step) return it->path;
      throw DamagedError("{}: holds another step", it->path.string());
    } catch (const DamagedError& error) {
      if (skipped) skipped->push_back(fmt::format("{}; skipped", error.what()));
    }
  }
  return std::nullopt;
}

fs::path resolve(const fs::path& path, std::vector<std::string>* skipped) {
  if (!fs::is_directory(path)) throw UsageError("{}: no such directory", path.string());
  if (path_exists(path / "state.json")) return path;
  for (const fs::path& directory : {path, path / "checkpoints"}) {
    if (auto found = latest(directory, skipped)) return *found;
  }
  throw UsageError("{}: there is no complete checkpoint in this folder or in its 'checkpoints'", path.string());
}

Verified verify(const fs::path& path) {
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint(path);
  Verified result;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const Box whole = whole_box(tensor.shape);
    checkpoint.read(name, {&whole, 1}, [](std::size_t, const Box&, const Box&, const void*) {});
    for (const Slice& slice : tensor.slices) result.blocks += static_cast<std::int64_t>(slice.hashes.size());
    ++result.tensors;
  }
  for (const std::string& name : checkpoint.attachment_names()) checkpoint.attachment(name);
  result.bytes = checkpoint.bytes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace molen::checkpoint
