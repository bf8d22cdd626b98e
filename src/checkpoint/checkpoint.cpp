// Loading: state and index are read whole and checked; data is read by ranges and compared with its hashes.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/suggest.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

// Members of documents from outside, with their types and ranges checked.
std::string text_member(const Json& object, std::string_view key, std::string_view origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_string()) throw UsageError("{}: '{}' must be a string", origin, key);
  return value.get<std::string>();
}

std::int64_t count_member(const Json& object, std::string_view key, std::string_view origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    throw UsageError("{}: '{}' must be a whole number, not negative", origin, key);
  }
  return value.get<std::int64_t>();
}

void check_format(const Json& document, const std::string& origin) {
  if (text_member(document, "format", origin) != "molen-checkpoint")
    throw UsageError("{}: not a molen checkpoint", origin);
  const std::int64_t version = count_member(document, "format_version", origin);
  if (version != kFormatVersion) {
    throw UsageError("{}: format version {}, this program reads {}", origin, version, kFormatVersion);
  }
}

std::vector<std::int64_t> parse_shape(const Json& tensor, DType dtype, const std::string& origin) {
  const Json& list = json_member(tensor, "shape", origin);
  if (!list.is_array() || list.size() > kMaxRank) throw UsageError("{}: 'shape' must be a list of sizes", origin);
  std::vector<std::int64_t> shape;
  std::int64_t bytes = size_of(dtype);
  for (const Json& size : list) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(bytes, size.get<std::uint64_t>(), &bytes)) {
      throw UsageError("{}: 'shape' has an impossible size", origin);
    }
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

Slice parse_slice(const Json& json, std::int64_t size, const std::string& origin) {
  Slice slice{text_member(json, "file", origin),
              text_member(json, "entry", origin),
              count_member(json, "offset", origin),
              count_member(json, "count", origin),
              {}};
  if (slice.file.find('/') != std::string::npos || !slice.file.starts_with("rank-")) {
    throw UsageError("{}: file name '{}' is not one of a checkpoint", origin, slice.file);
  }
  const Json& hashes = json_member(json, "xxh3", origin);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(slice.count, size, &bytes)) throw UsageError("{}: 'count' is impossible", origin);
  const std::int64_t blocks = bytes / kBlockBytes + (bytes % kBlockBytes != 0);
  if (!hashes.is_array() || static_cast<std::int64_t>(hashes.size()) != blocks) {
    throw UsageError("{}: 'xxh3' must hold {} hashes", origin, blocks);
  }
  for (const Json& hash : hashes) {
    if (!hash.is_string()) throw UsageError("{}: 'xxh3' must hold strings", origin);
    slice.hashes.push_back(hash.get<std::string>());
  }
  return slice;
}

StoredTensor parse_tensor(const Json& json, const std::string& origin) {
  StoredTensor tensor;
  tensor.dtype = dtype_from_name(text_member(json, "dtype", origin));
  tensor.shape = parse_shape(json, tensor.dtype, origin);
  const Json& slices = json_member(json, "slices", origin);
  if (!slices.is_array()) throw UsageError("{}: 'slices' must be a list", origin);
  std::int64_t position = 0;
  for (const Json& slice : slices) {
    tensor.slices.push_back(parse_slice(slice, size_of(tensor.dtype), origin));
    if (tensor.slices.back().offset != position || tensor.slices.back().count == 0 ||
        tensor.slices.back().count > tensor.elements() - position) {
      throw UsageError("{}: the slices do not tile the tensor at element {}", origin, position);
    }
    position += tensor.slices.back().count;
  }
  if (position != tensor.elements())
    throw UsageError("{}: the slices end at element {} of {}", origin, position, tensor.elements());
  return tensor;
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

Checkpoint::~Checkpoint() = default;

StoredState parse_state(std::string_view text, const std::string& origin) {
  const Json document = parse_json(text, origin);
  check_format(document, origin);
  StoredState stored;
  stored.step = count_member(document, "step", origin);
  stored.state = json_member(document, "state", origin);
  if (sha256_hex(stored.state.dump()) != text_member(document, "state_sha256", origin)) {
    throw UsageError("{}: 'state' does not match its hash: the file was altered", origin);
  }
  const Json& attachments = json_member(document, "attachments", origin);
  if (!attachments.is_object()) throw UsageError("{}: 'attachments' must be an object", origin);
  for (const auto& [name, hash] : attachments.items()) {
    if (!is_attachment_name(name) || !hash.is_string()) throw UsageError("{}: bad attachment '{}'", origin, name);
    stored.attachments[name] = hash.get<std::string>();
  }
  stored.index_sha256 = text_member(document, "index_sha256", origin);
  return stored;
}

std::map<std::string, StoredTensor> parse_index(std::string_view text, const std::string& origin) {
  const Json document = parse_json(text, origin);
  check_format(document, origin);
  if (count_member(document, "block_bytes", origin) != kBlockBytes)
    throw UsageError("{}: 'block_bytes' must be {}", origin, kBlockBytes);
  const Json& members = json_member(document, "tensors", origin);
  if (!members.is_object()) throw UsageError("{}: 'tensors' must be an object", origin);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, tensor] : members.items()) {
    tensors.emplace(name, parse_tensor(tensor, fmt::format("{}: tensor '{}'", origin, name)));
  }
  return tensors;
}

Checkpoint::Checkpoint(fs::path path) : path_(std::move(path)) {
  const fs::path state = path_ / "state.json", index = path_ / "index.json";
  StoredState stored = parse_state(read_file(state), state.string());
  step_ = stored.step;
  state_ = std::move(stored.state);
  attachments_ = std::move(stored.attachments);
  const std::string text = read_file(index);
  if (sha256_hex(text) != stored.index_sha256) {
    throw UsageError("{}: does not match the hash in state.json: the file was altered or cut short", index.string());
  }
  tensors_ = parse_index(text, index.string());
}

const StoredTensor& Checkpoint::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, unused] : tensors_) names.push_back(known);
  throw UsageError("{}: no tensor '{}'{}", path_.string(), name, did_you_mean(name, names));
}

const SafetensorsFile& Checkpoint::file(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  auto& file = files_[name];
  if (!file) file = std::make_unique<SafetensorsFile>(path_ / name);
  return *file;
}

// Elements [first, last) of the slice. Blocks wholly wanted go straight to their place; of the others a copy is hashed.
void Checkpoint::read_slice(const std::string& name, const StoredTensor& tensor, const Slice& slice, std::int64_t first,
                            std::int64_t last, char* destination) const {
  const SafetensorsFile& source = file(slice.file);
  const TensorInfo& entry = source.at(slice.entry);
  if (entry.dtype != tensor.dtype || entry.elements() != slice.count) {
    throw UsageError("{}: entry '{}' is not what index.json says of tensor '{}'", source.path().string(), slice.entry,
                     name);
  }
  const std::int64_t size = size_of(tensor.dtype), per_block = kBlockBytes / size;
  std::vector<char> copy;
  for (std::int64_t block = first / per_block; block * per_block < last; ++block) {
    const std::int64_t begin = block * per_block, end = std::min(begin + per_block, slice.count);
    const bool whole = begin >= first && end <= last;
    if (!whole) copy.resize(static_cast<std::size_t>((end - begin) * size));
    char* place = whole ? destination + (begin - first) * size : copy.data();
    source.read(entry, begin, end - begin, place);
    if (xxh3_hex(place, static_cast<std::size_t>((end - begin) * size)) !=
        slice.hashes[static_cast<std::size_t>(block)]) {
      throw UsageError("{}: tensor '{}' does not match its hash: the file is damaged; use another checkpoint",
                       source.path().string(), name);
    }
    if (whole) continue;
    const std::int64_t from = std::max(begin, first), to = std::min(end, last);
    std::copy_n(place + (from - begin) * size, (to - from) * size, destination + (from - first) * size);
  }
}

void Checkpoint::read(const std::string& name, std::int64_t offset, std::int64_t count, void* destination) const {
  const StoredTensor& stored = tensor(name);
  MOLEN_CHECK(offset >= 0 && count >= 0 && offset <= stored.elements() && count <= stored.elements() - offset,
              "range [{}, +{}) of tensor '{}' with {} elements", offset, count, name, stored.elements());
  if (count == 0) return;
  const std::int64_t end = offset + count, size = size_of(stored.dtype);
  auto slice = std::upper_bound(stored.slices.begin(), stored.slices.end(), offset,
                                [](std::int64_t at, const Slice& s) { return at < s.offset; });
  for (--slice; slice != stored.slices.end() && slice->offset < end; ++slice) {
    const std::int64_t first = std::max(offset, slice->offset), last = std::min(end, slice->offset + slice->count);
    read_slice(name, stored, *slice, first - slice->offset, last - slice->offset,
               static_cast<char*>(destination) + (first - offset) * size);
  }
}

std::string Checkpoint::attachment(const std::string& name) const {
  const auto found = attachments_.find(name);
  if (found == attachments_.end()) throw UsageError("{}: no attached file '{}'", path_.string(), name);
  std::string content = read_file(path_ / name);
  if (sha256_hex(content) != found->second)
    throw UsageError("{}: does not match its hash: the file was altered", (path_ / name).string());
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
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (skipped && is_unfinished(name)) skipped->push_back(fmt::format("{}: unfinished, skipped", it->path().string()));
    const auto step = step_of(name);
    if (!step || !it->is_directory()) continue;
    Listed listed{it->path(), *step, ""};
    try {
      const Checkpoint checkpoint(it->path());
      if (checkpoint.step() != *step)
        listed.problem = fmt::format("{}: holds step {}", it->path().string(), checkpoint.step());
    } catch (const UsageError& problem) {
      listed.problem = problem.what();
    }
    found.push_back(std::move(listed));
  }
  std::sort(found.begin(), found.end(), [](const Listed& a, const Listed& b) { return a.step < b.step; });
  return found;
}

std::optional<fs::path> latest(const fs::path& directory, std::vector<std::string>* skipped) {
  const std::vector<Listed> all = list(directory, skipped);
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (it->problem.empty()) return it->path;
    if (skipped) skipped->push_back(fmt::format("{}; skipped", it->problem));
  }
  return std::nullopt;
}

fs::path resolve(const fs::path& path, std::vector<std::string>* skipped) {
  if (!fs::is_directory(path)) throw UsageError("{}: no such directory", path.string());
  if (fs::exists(path / "state.json")) return path;
  for (const fs::path& directory : {path, path / "checkpoints"}) {
    if (auto found = latest(directory, skipped)) return *found;
  }
  throw UsageError("{}: no complete checkpoint here or in its 'checkpoints'", path.string());
}

Verified verify(const fs::path& path) {
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint(path);
  Verified result;
  std::vector<char> buffer;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::int64_t size = size_of(tensor.dtype), per_block = kBlockBytes / size;
    for (const Slice& slice : tensor.slices) {
      for (std::int64_t at = 0; at < slice.count; at += per_block) {
        const std::int64_t count = std::min(per_block, slice.count - at);
        buffer.resize(static_cast<std::size_t>(count * size));
        checkpoint.read(name, slice.offset + at, count, buffer.data());
        ++result.blocks;
      }
    }
    ++result.tensors;
  }
  for (const std::string& name : checkpoint.attachment_names()) checkpoint.attachment(name);
  result.bytes = checkpoint.bytes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace molen::checkpoint
