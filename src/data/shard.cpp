#include "data/shard.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace molen::data {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::int64_t kHeaderBytes = 34;

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

// Reads `size` bytes at `offset` of an index; the range lies within it.
using ReadAt = std::function<void(void* to, std::size_t size, std::int64_t offset)>;

// Reads one of an index's arrays element by element.
template <class T>
class Column {
 public:
  Column(const ReadAt& read, std::int64_t offset, std::int64_t count) : read_(read), offset_(offset), left_(count) {}
  T next() {
    if (at_ == window_.size()) {
      window_.resize(static_cast<std::size_t>(std::min<std::int64_t>(kWindow, left_)));
      read_(window_.data(), window_.size() * sizeof(T), offset_);
      offset_ += static_cast<std::int64_t>(window_.size() * sizeof(T));
      left_ -= static_cast<std::int64_t>(window_.size());
      at_ = 0;
    }
    return window_[at_++];
  }

 private:
  static constexpr std::int64_t kWindow = 4096;
  const ReadAt& read_;
  std::int64_t offset_, left_;
  std::vector<T> window_;
  std::size_t at_ = 0;
};

struct Header {
  DType dtype;
  std::int64_t sequences, marks;
};

Header parse_header(std::string_view bytes, std::int64_t size, std::string_view origin) {
  if (static_cast<std::int64_t>(bytes.size()) < kHeaderBytes)
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
  return {*dtype, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(documents)};
}

// Checks the sequences: lengths are not negative, pointers are the running sum of lengths x element size.
class Sequences {
 public:
  Sequences(const ReadAt& read, const Header& header, std::int64_t bin_bytes, std::string_view origin)
      : lengths_(read, kHeaderBytes, header.sequences),
        pointers_(read, kHeaderBytes + 4 * header.sequences, header.sequences),
        width_(size_of(header.dtype)),
        bin_bytes_(bin_bytes),
        origin_(origin) {}

  void next() {
    const std::int32_t length = lengths_.next();
    if (length < 0) throw UsageError("{}: sequence {} has the negative length {}", origin_, passed_, length);
    const std::int64_t pointer = pointers_.next();
    if (pointer != bytes_)
      throw UsageError("{}: sequence {} starts at byte {} of the .bin file, {} expected", origin_, passed_, pointer,
                       bytes_);
    bytes_ += length * width_;  // at most bin_bytes + 2^34
    if (bytes_ > bin_bytes_)
      throw UsageError(
          "{}: sequence {} ends at byte {}, but the .bin file has {} bytes: it is truncated or does not "
          "belong to this index; restore the pair or run `molen data prepare` again",
          origin_, passed_, bytes_, bin_bytes_);
    ++passed_;
  }
  std::int64_t passed() const { return passed_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t tokens() const { return bytes_ / width_; }

 private:
  Column<std::int32_t> lengths_;
  Column<std::int64_t> pointers_;
  std::int64_t width_, bin_bytes_, passed_ = 0, bytes_ = 0;
  std::string_view origin_;
};

ShardIndex walk(const ReadAt& read, const Header& header, std::int64_t bin_bytes, std::string_view origin,
                const OnDocument& on_document) {
  Sequences sequences(read, header, bin_bytes, origin);
  Column<std::int64_t> marks(read, kHeaderBytes + 12 * header.sequences, header.marks);
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < header.marks; ++i) {
    const std::int64_t mark = marks.next();
    if ((i == 0 && mark != 0) || mark < last || mark > header.sequences)
      throw UsageError("{}: document {} starts at sequence {}: document starts must begin at 0 and never fall", origin,
                       i, mark);
    const std::int64_t first = sequences.tokens();
    while (sequences.passed() < mark) sequences.next();
    if (i > 0 && on_document) on_document(first, sequences.tokens());
    last = mark;
  }
  if (last != header.sequences)
    throw UsageError("{}: the last document ends at sequence {} of {}", origin, last, header.sequences);
  if (sequences.bytes() != bin_bytes)
    throw UsageError("{}: the sequences end at byte {}, but the .bin file has {} bytes: the pair does not match",
                     origin, sequences.bytes(), bin_bytes);
  return {header.dtype, sequences.tokens(), header.marks - 1};
}

Header read_header(const File& file) {
  std::array<char, kHeaderBytes> bytes;
  const std::size_t got = file.read_some(bytes.data(), bytes.size(), 0);
  return parse_header({bytes.data(), got}, file.size(), file.path().string());
}

}  // namespace

DType token_dtype(std::int64_t vocabulary) {
  return vocabulary < 65500 ? DType::kU16 : DType::kI32;
}

ShardIndex parse_index(std::string_view bytes, std::int64_t bin_bytes, std::string_view origin,
                       const OnDocument& on_document) {
  const Header header = parse_header(bytes, static_cast<std::int64_t>(bytes.size()), origin);
  const ReadAt read = [&](void* to, std::size_t size, std::int64_t offset) {
    std::memcpy(to, bytes.data() + offset, size);
  };
  return walk(read, header, bin_bytes, origin, on_document);
}

ShardIndex read_index(const fs::path& prefix, const OnDocument& on_document) {
  const File idx = File::open(prefix.string() + ".idx");
  const Header header = read_header(idx);
  const ReadAt read = [&](void* to, std::size_t size, std::int64_t offset) { idx.read(to, size, offset); };
  return walk(read, header, File::open(prefix.string() + ".bin").size(), idx.path().string(), on_document);
}

ShardIndex read_index_header(const fs::path& prefix) {
  const Header header = read_header(File::open(prefix.string() + ".idx"));
  const std::int64_t bytes = File::open(prefix.string() + ".bin").size(), width = size_of(header.dtype);
  if (bytes % width != 0)
    throw UsageError("{}.bin: {} bytes are no whole number of tokens of {}", prefix.string(), bytes, width);
  return {header.dtype, bytes / width, header.marks - 1};
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

namespace {

struct OpenShard {
  File bin;
  DType dtype;
};

// The open pairs, the most recently read first.
class OpenShards {
 public:
  static OpenShards& get() {
    static OpenShards shards;
    return shards;
  }

  std::shared_ptr<const OpenShard> of(const ShardReader& reader) {
    const std::lock_guard lock(mutex_);
    if (const auto found = places_.find(&reader); found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      return found->second->second;
    }
    auto opened = open(reader);
    while (static_cast<int>(order_.size()) >= limit_) {
      places_.erase(order_.back().first);
      order_.pop_back();
    }
    order_.emplace_front(&reader, opened);
    places_[&reader] = order_.begin();
    return opened;
  }
  void close(const ShardReader& reader) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(&reader);
    if (found == places_.end()) return;
    order_.erase(found->second);
    places_.erase(found);
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(order_.size());
  }
  int limit() const { return limit_; }

 private:
  OpenShards() {
    struct rlimit files {};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
      limit_ = static_cast<int>(std::clamp<rlim_t>(files.rlim_cur / 4, 16, 1024));
  }

  static std::shared_ptr<const OpenShard> open(const ShardReader& reader) {
    const std::string idx = reader.prefix() + ".idx";
    File bin = File::open(reader.prefix() + ".bin");
    const Header header = read_header(File::open(idx));
    const std::int64_t width = size_of(header.dtype), size = bin.size();
    if (size != reader.bin_bytes() || reader.tokens() != size / width || size % width != 0)
      throw UsageError(
          "{}.bin: {} bytes of tokens of {}, but {} tokens in {} bytes were expected: truncated or altered; restore "
          "the pair or run `molen data prepare` again",
          reader.prefix(), size, width, reader.tokens(), reader.bin_bytes());
    return std::make_shared<const OpenShard>(OpenShard{std::move(bin), header.dtype});
  }

  using Order = std::list<std::pair<const ShardReader*, std::shared_ptr<const OpenShard>>>;
  mutable std::mutex mutex_;
  int limit_ = 64;
  Order order_;
  std::unordered_map<const ShardReader*, Order::iterator> places_;
};

}  // namespace

int open_shards() {
  return OpenShards::get().count();
}
int open_shards_limit() {
  return OpenShards::get().limit();
}

ShardReader::ShardReader(const fs::path& prefix) : prefix_(prefix.string()) {
  tokens_ = read_index(prefix).tokens;
  bin_bytes_ = File::open(prefix_ + ".bin").size();
}

ShardReader::~ShardReader() {
  OpenShards::get().close(*this);
}

namespace {

// Widens elements of T to 32 bits; returns the position of the first token outside the vocabulary, or -1. The common
// case has no branch per token, so that it vectorises.
template <class T>
std::int64_t widen(const char* raw, std::span<std::int32_t> out, std::int64_t vocabulary) {
  bool bad = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw + i * sizeof(T), sizeof(T));
    bad |= static_cast<std::int64_t>(value) < 0 || static_cast<std::int64_t>(value) >= vocabulary;
    out[i] = static_cast<std::int32_t>(value);  // NOLINT(bugprone-signed-char-misuse): a token, not a character
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
  const auto shard = OpenShards::get().of(*this);
  const std::int64_t width = size_of(shard->dtype);
  std::vector<char> raw(static_cast<std::size_t>(count * width));
  const std::size_t got = shard->bin.read_some(raw.data(), raw.size(), first * width);
  if (got < raw.size())
    throw UsageError("{}.bin: ends at byte {}, {} expected: it was truncated while in use", prefix_,
                     first * width + static_cast<std::int64_t>(got), bin_bytes_);
  const std::int64_t bad = widen(shard->dtype, raw.data(), out, vocabulary);
  if (bad >= 0)
    throw UsageError(
        "{}.bin: token {} is outside the vocabulary of {} entries: the shard is damaged or was made with "
        "another tokenizer",
        prefix_, first + bad, vocabulary);
}

struct ShardWriter::State {
  State(const fs::path& path, std::int64_t entries)
      : prefix(path),
        vocabulary(entries),
        dtype(token_dtype(entries)),
        file(File::temporary_beside(path.string() + ".bin")) {}

  fs::path prefix;
  std::int64_t vocabulary;
  DType dtype;
  File file;
  std::vector<std::int32_t> lengths;
  std::int64_t tokens = 0;
  std::string buffer;
  Sha256 hash;

  void flush() {
    hash.update(buffer.data(), buffer.size());
    file.write(buffer);
    buffer.clear();
  }
};

ShardWriter::ShardWriter(const fs::path& prefix, std::int64_t vocabulary) {
  MOLEN_CHECK(vocabulary > 0, "vocabulary of {}", vocabulary);
  state_ = std::make_unique<State>(prefix, vocabulary);
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
  const std::string idx = s.prefix.string() + ".idx", index = format_index(s.dtype, s.lengths);
  // Removes the old index first and writes the new one last, so that there is never a complete pair of an old and a new
  // half.
  remove_file(idx);
  s.file.publish();
  write_file_atomic(idx, index);
  return {static_cast<std::int64_t>(s.lengths.size()), s.tokens,     s.tokens * size_of(s.dtype),
          static_cast<std::int64_t>(index.size()),     s.hash.hex(), sha256_hex(index)};
}

}  // namespace molen::data
