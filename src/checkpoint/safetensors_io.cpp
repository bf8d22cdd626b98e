// Reads and writes safetensors files: descriptors, offsets, hashes.
#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

constexpr std::uint64_t kTransfer = std::uint64_t{1} << 24;  // bytes of one read or write call
constexpr std::uint64_t kWriteback = std::uint64_t{1} << 20;

std::string hex_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::uint64_t bytes_of(const TensorSpec& spec) {
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(spec.dtype));
  for (const std::int64_t size : spec.shape) {
    MOLEN_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes),
                "size of tensor '{}'", spec.name);
  }
  return bytes;
}

}  // namespace

std::string xxh3_hex(const void* data, std::size_t size) {
  return hex_of(XXH3_128bits(data, size));
}

SafetensorsFile::SafetensorsFile(File file) : file_(std::move(file)) {
  const auto file_size = static_cast<std::uint64_t>(file_.size());
  std::uint64_t length = 0;
  std::string front(std::min<std::uint64_t>(file_size, 8), '\0');
  file_.read(front.data(), front.size(), 0);
  if (front.size() == 8) std::memcpy(&length, front.data(), 8);
  // Only for a possible length: a hostile file must not make us allocate more than it holds.
  if (length <= kMaxHeaderBytes && file_size >= 8 && length <= file_size - 8) {
    front.resize(8 + length);
    file_.read(front.data() + 8, length, 8);
  }
  header_ = parse_safetensors(front, file_size, path().string());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (!tensor) throw UsageError("{}: no tensor '{}'", path().string(), name);
  return *tensor;
}

void SafetensorsFile::read_bytes(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t size,
                                 void* destination) const {
  MOLEN_CHECK(offset <= tensor.end - tensor.begin && size <= tensor.end - tensor.begin - offset,
              "range beyond tensor '{}'", tensor.name);
  try {
    file_.read(destination, size, static_cast<std::int64_t>(header_.buffer_begin + tensor.begin + offset));
  } catch (const DamagedError& error) {
    throw DamagedError("{} (in tensor '{}')", error.what(), tensor.name);
  }
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t offset, std::int64_t count, void* destination) const {
  if (!tensor.dtype) {
    throw UsageError("{}: tensor '{}' has dtype {}, which molen does not read", path().string(), tensor.name,
                     tensor.dtype_name);
  }
  MOLEN_CHECK(offset >= 0 && count >= 0 && offset <= tensor.elements() && count <= tensor.elements() - offset,
              "range beyond tensor '{}'", tensor.name);
  const std::int64_t size = size_of(*tensor.dtype);
  read_bytes(tensor, static_cast<std::uint64_t>(offset * size), static_cast<std::uint64_t>(count * size), destination);
}

std::int64_t SafetensorsFile::verify_hashes() const {
  std::int64_t compared = 0;
  std::vector<char> buffer;
  for (const TensorInfo& tensor : header_.tensors) {
    const auto expected = header_.metadata.find("xxh3:" + tensor.name);
    if (expected == header_.metadata.end()) continue;
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
    XXH3_128bits_reset(state.get());
    const std::uint64_t size = tensor.end - tensor.begin;
    for (std::uint64_t at = 0; at < size; at += kTransfer) {
      buffer.resize(std::min(kTransfer, size - at));
      read_bytes(tensor, at, buffer.size(), buffer.data());
      XXH3_128bits_update(state.get(), buffer.data(), buffer.size());
    }
    if (hex_of(XXH3_128bits_digest(state.get())) != expected->second) {
      throw DamagedError("{}: tensor '{}' does not match its hash: the file is damaged", path().string(), tensor.name);
    }
    ++compared;
  }
  return compared;
}

void sort_as_written(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const std::int64_t left = size_of(a.dtype), right = size_of(b.dtype);
    return left != right ? left > right : a.dtype != b.dtype ? a.dtype < b.dtype : a.name < b.name;
  });
}

std::string header_of(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto quoted = [](const std::string& s) { return Json(s).dump(); };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", quoted(key), quoted(value));
    text.back() = '}';
    text += ",";
  }
  std::uint64_t begin = 0;
  for (const TensorSpec& spec : tensors) {
    const std::uint64_t end = begin + bytes_of(spec);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", quoted(spec.name),
                        safetensors_name(spec.dtype), fmt::join(spec.shape, ","), begin, end);
    begin = end;
  }
  if (text.size() > 1) text.pop_back();
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  MOLEN_CHECK(length <= kMaxHeaderBytes, "a safetensors header of {} bytes", length);
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix + text;
}

struct SafetensorsWriter::Slot {
  TensorSpec spec;
  std::uint64_t begin = 0, size = 0;
  std::uint64_t written = 0;  // bytes so far
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{nullptr, XXH3_freeState};
};

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorSpec> tensors, WriterOptions options)
    : file_(File::temporary_beside(path)), options_(std::move(options)) {
  sort_as_written(tensors);
  for (TensorSpec& spec : tensors) {
    const std::string problem = name_problem(spec.name);
    MOLEN_CHECK(problem.empty() && spec.shape.size() <= kMaxRank, "tensor '{}' cannot be stored: {}", spec.name,
                problem.empty() ? "too many dimensions" : problem);
    auto slot = std::make_unique<Slot>();
    slot->begin = buffer_size_;
    slot->size = bytes_of(spec);
    slot->spec = std::move(spec);
    buffer_size_ += slot->size;
    if (options_.hashes) {
      slot->state.reset(XXH3_createState());
      XXH3_128bits_reset(slot->state.get());
    }
    MOLEN_CHECK(by_name_.emplace(slot->spec.name, slots_.size()).second, "tensor '{}' twice", slot->spec.name);
    slots_.push_back(std::move(slot));
  }
  const std::string header = header_text();
  buffer_begin_ = header.size();
  // A full disk is detected here and not after hours of writing.
  file_.allocate(static_cast<std::int64_t>(bytes()));
  file_.write_at(header.data(), header.size(), 0);
}

SafetensorsWriter::~SafetensorsWriter() = default;

std::uint64_t SafetensorsWriter::bytes() const {
  return buffer_begin_ + buffer_size_;
}

// Hashes have a fixed width, so that the header keeps its length when they are filled in.
std::string SafetensorsWriter::header_text() const {
  std::map<std::string, std::string> metadata = options_.metadata;
  if (options_.hashes) {
    for (const auto& slot : slots_)
      metadata["xxh3:" + slot->spec.name] = hex_of(XXH3_128bits_digest(slot->state.get()));
  }
  std::vector<TensorSpec> specs;
  for (const auto& slot : slots_) specs.push_back(slot->spec);
  return header_of(specs, metadata);
}

void SafetensorsWriter::write(std::string_view tensor, std::uint64_t offset, const void* data, std::uint64_t size) {
  const auto found = by_name_.find(std::string(tensor));
  MOLEN_CHECK(found != by_name_.end(), "tensor '{}' is not in the header", tensor);
  Slot& slot = *slots_[found->second];
  MOLEN_CHECK(offset <= slot.size && size <= slot.size - offset, "part beyond tensor '{}'", tensor);
  if (slot.state) {
    MOLEN_CHECK(offset == slot.written, "parts of tensor '{}' out of order", tensor);
    XXH3_128bits_update(slot.state.get(), data, size);
  }
  file_.write_at(data, size, static_cast<std::int64_t>(buffer_begin_ + slot.begin + offset));
  // Asks the system to start writing complete data to disk, so that finish() waits only for the last part. A failure
  // changes nothing.
  if (size >= kWriteback) {
    ::sync_file_range(file_.descriptor(), static_cast<off_t>(buffer_begin_ + slot.begin + offset),
                      static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
  }
  slot.written += size;
}

void SafetensorsWriter::finish() {
  for (const auto& slot : slots_) {
    MOLEN_CHECK(slot->written == slot->size, "{} of {} bytes written of tensor '{}'", slot->written, slot->size,
                slot->spec.name);
  }
  if (options_.hashes) {
    const std::string header = header_text();
    MOLEN_CHECK(header.size() == buffer_begin_, "safetensors header changed its length");
    file_.write_at(header.data(), header.size(), 0);
  }
  file_.publish();
}

}  // namespace molen::checkpoint
