#include "data/shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace molen::data {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::int64_t kHeaderBytes = 34;
constexpr std::int64_t kIndexLimit = std::int64_t{1} << 36;

template <class T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::optional<DType> dtype_of_code(int code) {
  switch (code) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kI8;
    case 3:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 5:
      return DType::kI64;
    case 8:
      return DType::kU16;
    default:
      return std::nullopt;
  }
}

int code_of_dtype(DType dtype) {
  MOLEN_CHECK(dtype == DType::kU16 || dtype == DType::kI32, "shards are written as u16 or i32");
  return dtype == DType::kU16 ? 8 : 4;
}

std::string why() {
  return std::strerror(errno);
}

// Sequence lengths and byte pointers: lengths are not negative, pointers are the running sum of lengths x element size.
void read_sequences(ShardIndex& index, const char* lengths, const char* pointers, std::int64_t count,
                    std::int64_t bin_bytes, std::string_view origin) {
  const std::int64_t width = size_of(index.dtype);
  index.lengths.resize(static_cast<std::size_t>(count));
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = load<std::int32_t>(lengths + 4 * i);
    if (length < 0) throw UsageError("{}: sequence {} has the negative length {}", origin, i, length);
    const auto pointer = load<std::int64_t>(pointers + 8 * i);
    if (pointer != bytes)
      throw UsageError("{}: sequence {} starts at byte {} of the .bin file, {} expected", origin, i, pointer, bytes);
    index.lengths[static_cast<std::size_t>(i)] = length;
    bytes += length * width;  // count <= 2^32 or so and length < 2^31: far from overflow for any file that exists
    if (bytes > bin_bytes)
      throw UsageError(
          "{}: sequence {} ends at byte {}, but the .bin file has {} bytes: it is truncated or does not "
          "belong to this index; restore the pair or run `molen data prepare` again",
          origin, i, bytes, bin_bytes);
  }
  if (bytes != bin_bytes)
    throw UsageError("{}: the sequences end at byte {}, but the .bin file has {} bytes: the pair does not match",
                     origin, bytes, bin_bytes);
  index.tokens = bytes / width;
}

void read_documents(ShardIndex& index, const char* at, std::int64_t count, std::int64_t sequences,
                    std::string_view origin) {
  index.documents.resize(static_cast<std::size_t>(count));
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto first = load<std::int64_t>(at + 8 * i);
    if ((i == 0 && first != 0) || first < last || first > sequences)
      throw UsageError("{}: document {} starts at sequence {}: document starts must begin at 0 and never fall", origin,
                       i, first);
    index.documents[static_cast<std::size_t>(i)] = last = first;
  }
  if (last != sequences) throw UsageError("{}: the last document ends at sequence {} of {}", origin, last, sequences);
}

}  // namespace

DType token_dtype(std::int64_t vocabulary) {
  return vocabulary < 65500 ? DType::kU16 : DType::kI32;
}

ShardIndex parse_index(std::string_view bytes, std::int64_t bin_bytes, std::string_view origin) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < kHeaderBytes)
    throw UsageError("{}: {} bytes, shorter than the header of a token index (34)", origin, size);
  if (bytes.substr(0, kMagic.size()) != kMagic)
    throw UsageError("{}: not a Megatron token index (no MMIDIDX at its start)", origin);
  const auto version = load<std::uint64_t>(bytes.data() + 9);
  if (version != 1) throw UsageError("{}: index version {}, only 1 is known", origin, version);
  const int code = static_cast<unsigned char>(bytes[17]);
  const auto dtype = dtype_of_code(code);
  if (!dtype) throw UsageError("{}: element type code {} is no integer type of this format", origin, code);
  const auto sequences = load<std::uint64_t>(bytes.data() + 18);
  const auto documents = load<std::uint64_t>(bytes.data() + 26);
  const auto rest = static_cast<std::uint64_t>(size - kHeaderBytes);
  if (sequences > rest / 12 || documents > rest / 8 || documents < 1)
    throw UsageError("{}: {} sequences and {} document marks do not fit in {} bytes", origin, sequences, documents,
                     size);
  const std::uint64_t expected = 12 * sequences + 8 * documents;
  if (rest != expected && rest != expected + sequences)
    throw UsageError("{}: {} bytes, but {} sequences and {} document marks need {}: truncated or damaged", origin, size,
                     sequences, documents, expected + kHeaderBytes);

  ShardIndex index;
  index.dtype = *dtype;
  const auto count = static_cast<std::int64_t>(sequences);
  const char* lengths = bytes.data() + kHeaderBytes;
  const char* pointers = lengths + 4 * count;
  read_sequences(index, lengths, pointers, count, bin_bytes, origin);
  read_documents(index, pointers + 8 * count, static_cast<std::int64_t>(documents), count, origin);
  return index;
}

std::string format_index(DType dtype, std::span<const std::int32_t> lengths) {
  std::string out(kMagic);
  out.reserve(static_cast<std::size_t>(kHeaderBytes) + lengths.size() * 20 + 8);
  append(out, std::uint64_t{1});
  out.push_back(static_cast<char>(code_of_dtype(dtype)));
  append(out, static_cast<std::uint64_t>(lengths.size()));
  append(out, static_cast<std::uint64_t>(lengths.size() + 1));
  for (std::int32_t length : lengths) append(out, length);
  std::int64_t pointer = 0;
  for (std::int32_t length : lengths) {
    append(out, pointer);
    pointer += length * size_of(dtype);
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i) append(out, static_cast<std::int64_t>(i));
  return out;
}

ShardReader::ShardReader(fs::path prefix) : prefix_(std::move(prefix)) {
  const std::string bin = prefix_.string() + ".bin", idx = prefix_.string() + ".idx";
  const std::string bytes = read_file(idx, kIndexLimit);
  fd_ = ::open(bin.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw UsageError("{}: cannot be read: {}", bin, why());
  struct stat status {};
  try {
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) throw UsageError("{}: not a regular file", bin);
    bin_bytes_ = status.st_size;
    index_ = parse_index(bytes, bin_bytes_, idx);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

ShardReader::~ShardReader() {
  ::close(fd_);
}

namespace {

// Widens elements of T to 32 bits; says where the first token outside the vocabulary is, or -1. The common case has no
// branch per token, so that it vectorises.
template <class T>
std::int64_t widen(const char* raw, std::span<std::int32_t> out, std::int64_t vocabulary) {
  bool bad = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw + i * sizeof(T), sizeof(T));
    bad |= static_cast<std::int64_t>(value) < 0 || static_cast<std::int64_t>(value) >= vocabulary;
    out[i] = static_cast<std::int32_t>(value);
  }
  if (!bad) return -1;
  for (std::size_t i = 0;; ++i) {
    T value;
    std::memcpy(&value, raw + i * sizeof(T), sizeof(T));
    if (static_cast<std::int64_t>(value) < 0 || static_cast<std::int64_t>(value) >= vocabulary)
      return static_cast<std::int64_t>(i);
  }
}

std::int64_t widen(DType dtype, const char* raw, std::span<std::int32_t> out, std::int64_t vocabulary) {
  switch (dtype) {
    case DType::kU8:
      return widen<std::uint8_t>(raw, out, vocabulary);
    case DType::kI8:
      return widen<std::int8_t>(raw, out, vocabulary);
    case DType::kI16:
      return widen<std::int16_t>(raw, out, vocabulary);
    case DType::kU16:
      return widen<std::uint16_t>(raw, out, vocabulary);
    case DType::kI32:
      return widen<std::int32_t>(raw, out, vocabulary);
    case DType::kI64:
      return widen<std::int64_t>(raw, out, vocabulary);
    default:
      MOLEN_CHECK(false, "token type {}", name_of(dtype));
  }
  return -1;
}

}  // namespace

void ShardReader::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const {
  const auto count = static_cast<std::int64_t>(out.size());
  MOLEN_CHECK(first >= 0 && count <= tokens() - first, "tokens [{}, {}) of {}", first, first + count, tokens());
  const std::int64_t width = size_of(index_.dtype);
  std::vector<char> raw(static_cast<std::size_t>(count * width));
  std::size_t done = 0;
  while (done < raw.size()) {
    const ssize_t got = ::pread(fd_, raw.data() + done, raw.size() - done, first * width + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error("{}.bin: cannot be read: {}", prefix_.string(), why());
    if (got == 0)
      throw UsageError("{}.bin: ends at byte {}, {} expected: it was truncated while in use", prefix_.string(),
                       first * width + static_cast<std::int64_t>(done), bin_bytes_);
    done += static_cast<std::size_t>(got);
  }
  const std::int64_t bad = widen(index_.dtype, raw.data(), out, vocabulary);
  if (bad >= 0)
    throw UsageError(
        "{}.bin: token {} is outside the vocabulary of {} entries: the shard is damaged or was made with "
        "another tokenizer",
        prefix_.string(), first + bad, vocabulary);
}

struct ShardWriter::State {
  fs::path prefix;
  std::int64_t vocabulary;
  DType dtype;
  std::string part;
  int fd = -1;
  std::vector<std::int32_t> lengths;
  std::int64_t tokens = 0;
  std::string buffer;
  Sha256 hash;

  ~State() {
    if (fd >= 0) ::close(fd);
    if (!part.empty()) ::unlink(part.c_str());
  }

  void flush() {
    hash.update(buffer.data(), buffer.size());
    std::size_t done = 0;
    while (done < buffer.size()) {
      const ssize_t wrote = ::write(fd, buffer.data() + done, buffer.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) throw Error("{}.bin: cannot be written: {}", prefix.string(), why());
      done += static_cast<std::size_t>(wrote);
    }
    buffer.clear();
  }
};

ShardWriter::ShardWriter(fs::path prefix, std::int64_t vocabulary) : state_(std::make_unique<State>()) {
  MOLEN_CHECK(vocabulary > 0, "vocabulary of {}", vocabulary);
  state_->prefix = std::move(prefix);
  state_->vocabulary = vocabulary;
  state_->dtype = token_dtype(vocabulary);
  const std::string part = state_->prefix.string() + fmt::format(".bin.part.{}", ::getpid());
  state_->fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (state_->fd < 0) throw Error("{}.bin: cannot be written: {}", state_->prefix.string(), why());
  state_->part = part;
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::add(std::span<const std::int32_t> tokens) {
  State& s = *state_;
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw UsageError("{}: a document of {} tokens is longer than the format allows", s.prefix.string(), tokens.size());
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= s.vocabulary)
      throw UsageError("{}: token {} is outside the vocabulary of {} entries", s.prefix.string(), token, s.vocabulary);
    if (s.dtype == DType::kU16)
      append(s.buffer, static_cast<std::uint16_t>(token));
    else
      append(s.buffer, token);
  }
  s.lengths.push_back(static_cast<std::int32_t>(tokens.size()));
  s.tokens += static_cast<std::int64_t>(tokens.size());
  if (s.buffer.size() >= (std::size_t{1} << 20)) s.flush();
}

ShardWriter::Written ShardWriter::finish() {
  State& s = *state_;
  s.flush();
  const int fd = std::exchange(s.fd, -1);
  const bool synced = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !synced) throw Error("{}.bin: cannot be written: {}", s.prefix.string(), why());
  const std::string bin = s.prefix.string() + ".bin", idx = s.prefix.string() + ".idx";
  const std::string index = format_index(s.dtype, s.lengths);
  // The old index goes first and the new one comes last: a pair whose halves differ never stands complete.
  ::unlink(idx.c_str());
  if (::rename(s.part.c_str(), bin.c_str()) != 0) throw Error("{}: cannot be replaced: {}", bin, why());
  s.part.clear();
  write_file_atomic(idx, index);
  return {static_cast<std::int64_t>(s.lengths.size()), s.tokens,     s.tokens * size_of(s.dtype),
          static_cast<std::int64_t>(index.size()),     s.hash.hex(), sha256_hex(index)};
}

}  // namespace molen::data
