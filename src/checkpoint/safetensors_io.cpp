// Reading and writing of safetensors files: descriptors, offsets, hashes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

constexpr std::uint64_t kTransfer = std::uint64_t{1} << 24;  // bytes of one read or write call
constexpr std::uint64_t kWriteback = std::uint64_t{1} << 20;

std::string reason() {
  return std::strerror(errno);
}

// Fills `size` bytes or throws; a file that ends early was cut since it was opened.
void read_fully(int fd, const fs::path& path, std::uint64_t offset, std::uint64_t size, void* destination) {
  auto* out = static_cast<char*>(destination);
  while (size > 0) {
    const ssize_t got = ::pread(fd, out, std::min(size, kTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
    if (got == 0) throw UsageError("{}: ends early, at byte {}", path.string(), offset);
    out += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::uint64_t>(got);
  }
}

void write_fully(int fd, const fs::path& path, std::uint64_t offset, const void* data, std::uint64_t size) {
  const auto* in = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t wrote = ::pwrite(fd, in, std::min(size, kTransfer), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) throw Error("{}: cannot be written: {}", path.string(), reason());
    in += wrote;
    offset += static_cast<std::uint64_t>(wrote);
    size -= static_cast<std::uint64_t>(wrote);
  }
}

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

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path) {
  // O_NONBLOCK: a named pipe must give an error, not wait for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
    if (!S_ISREG(status.st_mode)) throw UsageError("{}: is not a file", path.string());
    const auto file_size = static_cast<std::uint64_t>(status.st_size);
    std::uint64_t length = 0;
    std::string front(std::min<std::uint64_t>(file_size, 8), '\0');
    read_fully(fd_, path_, 0, front.size(), front.data());
    if (front.size() == 8) std::memcpy(&length, front.data(), 8);
    // Memory is taken only for a header that can be true.
    if (length <= kMaxHeaderBytes && file_size >= 8 && length <= file_size - 8) {
      front.resize(8 + length);
      read_fully(fd_, path_, 8, length, front.data() + 8);
    }
    header_ = parse_safetensors(front, file_size, path_.string());
  } catch (...) {
    ::close(fd_);
    throw;
  }
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

SafetensorsFile::~SafetensorsFile() {
  ::close(fd_);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (!tensor) throw UsageError("{}: no tensor '{}'", path_.string(), name);
  return *tensor;
}

void SafetensorsFile::read_bytes(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t size,
                                 void* destination) const {
  MOLEN_CHECK(offset <= tensor.end - tensor.begin && size <= tensor.end - tensor.begin - offset,
              "range beyond tensor '{}'", tensor.name);
  try {
    read_fully(fd_, path_, header_.buffer_begin + tensor.begin + offset, size, destination);
  } catch (const UsageError& error) {
    throw UsageError("{} (in tensor '{}')", error.what(), tensor.name);
  }
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t offset, std::int64_t count, void* destination) const {
  if (!tensor.dtype) {
    throw UsageError("{}: tensor '{}' has dtype {}, which molen does not read", path_.string(), tensor.name,
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
      throw UsageError("{}: tensor '{}' does not match its hash: the file is damaged", path_.string(), tensor.name);
    }
    ++compared;
  }
  return compared;
}

struct SafetensorsWriter::Slot {
  TensorSpec spec;
  std::uint64_t begin = 0, size = 0;
  std::uint64_t written = 0;  // bytes so far
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{nullptr, XXH3_freeState};
};

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorSpec> tensors, WriterOptions options)
    : path_(std::move(path)),
      part_(path_.string() + fmt::format(".part.{}", ::getpid())),
      options_(std::move(options)) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const std::int64_t left = size_of(a.dtype), right = size_of(b.dtype);
    return left != right ? left > right : a.dtype != b.dtype ? a.dtype < b.dtype : a.name < b.name;
  });
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
  fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error("{}: cannot be written: {}", path_.string(), reason());
  try {
    // Where the file system can, a full disk is noticed here and not after hours of writing.
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes())) != 0 &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
      throw Error("{}: cannot be written: {} ({} bytes needed)", path_.string(), reason(), bytes());
    }
    write_fully(fd_, path_, 0, header.data(), header.size());
  } catch (...) {
    ::close(fd_);
    ::unlink(part_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(part_.c_str());
}

std::uint64_t SafetensorsWriter::bytes() const {
  return buffer_begin_ + buffer_size_;
}

// Length included. Hashes have a fixed width, so that the header keeps its length when they become known.
std::string SafetensorsWriter::header_text() const {
  std::string text = "{";
  const auto quoted = [](const std::string& s) { return Json(s).dump(); };
  std::map<std::string, std::string> metadata = options_.metadata;
  if (options_.hashes) {
    for (const auto& slot : slots_)
      metadata["xxh3:" + slot->spec.name] = hex_of(XXH3_128bits_digest(slot->state.get()));
  }
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", quoted(key), quoted(value));
    text.back() = '}';
    text += ",";
  }
  for (const auto& slot : slots_) {
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", quoted(slot->spec.name),
                        safetensors_name(slot->spec.dtype), fmt::join(slot->spec.shape, ","), slot->begin,
                        slot->begin + slot->size);
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

void SafetensorsWriter::write(std::string_view tensor, std::uint64_t offset, const void* data, std::uint64_t size) {
  const auto found = by_name_.find(std::string(tensor));
  MOLEN_CHECK(found != by_name_.end(), "tensor '{}' is not in the header", tensor);
  Slot& slot = *slots_[found->second];
  MOLEN_CHECK(offset <= slot.size && size <= slot.size - offset, "part beyond tensor '{}'", tensor);
  if (slot.state) {
    MOLEN_CHECK(offset == slot.written, "parts of tensor '{}' out of order", tensor);
    XXH3_128bits_update(slot.state.get(), data, size);
  }
  write_fully(fd_, path_, buffer_begin_ + slot.begin + offset, data, size);
  // Starts the disk on what is complete, so that finish() waits for the last part only. A hint: its failure changes
  // nothing.
  if (size >= kWriteback) {
    ::sync_file_range(fd_, static_cast<off_t>(buffer_begin_ + slot.begin + offset), static_cast<off_t>(size),
                      SYNC_FILE_RANGE_WRITE);
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
    write_fully(fd_, path_, 0, header.data(), header.size());
  }
  if (::fsync(fd_) != 0) throw Error("{}: cannot be written: {}", path_.string(), reason());
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) {
    const std::string why = reason();
    ::unlink(part_.c_str());
    throw Error("{}: cannot be written: {}", path_.string(), why);
  }
}

}  // namespace molen::checkpoint
