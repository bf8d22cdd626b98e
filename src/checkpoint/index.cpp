#include "checkpoint/index.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

// Reads members of documents from outside, with their types and ranges checked.
std::string text_member(const Json& object, std::string_view key, std::string_view origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_string()) throw UsageError("{}: '{}' must be a string", origin, key);
  return value.get<std::string>();
}

std::int64_t count_of(const Json& value, std::string_view key, std::string_view origin) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    throw UsageError("{}: '{}' must be a whole number, not negative", origin, key);
  }
  return value.get<std::int64_t>();
}
std::int64_t count_member(const Json& object, std::string_view key, std::string_view origin) {
  return count_of(json_member(object, key, origin), key, origin);
}

std::vector<std::int64_t> counts_member(const Json& object, std::string_view key, std::string_view origin) {
  const Json& list = json_member(object, key, origin);
  if (!list.is_array() || list.size() > kMaxRank) throw UsageError("{}: '{}' must be a list of sizes", origin, key);
  std::vector<std::int64_t> counts;
  for (const Json& value : list) counts.push_back(count_of(value, key, origin));
  return counts;
}

void check_format(const Json& document, const std::string& origin) {
  if (text_member(document, "format", origin) != "molen-checkpoint")
    throw UsageError("{}: not a molen checkpoint", origin);
  const std::int64_t version = count_member(document, "format_version", origin);
  if (version < 1 || version > kFormatVersion)
    throw VersionError("{}: format version {}; this molen reads 1 to {}: use the version of molen that wrote it",
                       origin, version, kFormatVersion);
}

int rank_of_file(const std::string& file, const std::string& origin) {
  for (const int rank : {0, 1})  // the longest name that rank_file gives has ten digits
    if (file == rank_file(rank)) return rank;
  const std::string_view digits = std::string_view(file).substr(std::min<std::size_t>(5, file.size()));
  int rank = 0;
  for (const char c : digits.substr(0, digits.find('.'))) {
    if (c < '0' || c > '9' || rank > 100'000'000) break;
    rank = rank * 10 + (c - '0');
  }
  if (file != rank_file(rank)) throw UsageError("{}: file name '{}' is not one of a checkpoint", origin, file);
  return rank;
}

std::vector<std::string> hashes_member(const Json& slice, const std::string& origin) {
  std::vector<std::string> hashes;
  const Json& list = json_member(slice, "xxh3", origin);
  if (!list.is_array()) throw UsageError("{}: 'xxh3' must be a list of hashes", origin);
  for (const Json& hash : list) {
    if (!hash.is_string()) throw UsageError("{}: 'xxh3' must hold strings", origin);
    hashes.push_back(hash.get<std::string>());
  }
  return hashes;
}

// A slice before its tensor's shape is known. Our own key order gives the shape first, but a reader must not rely on
// it.
struct Raw {
  Slice slice;
  std::int64_t offset = 0, count = 0;  // of format version 1
  bool flat = false;
};

Raw parse_slice(const Json& json, const std::string& origin) {
  Raw raw;
  raw.slice.hashes = hashes_member(json, origin);
  if (json.contains("offset")) {
    raw.flat = true;
    raw.slice.rank = rank_of_file(text_member(json, "file", origin), origin);
    raw.slice.entry = text_member(json, "entry", origin);
    raw.offset = count_member(json, "offset", origin);
    raw.count = count_member(json, "count", origin);
    return raw;
  }
  const std::int64_t rank = count_member(json, "rank", origin);
  if (rank > 100'000'000) throw UsageError("{}: 'rank' is impossible", origin);
  raw.slice.rank = static_cast<int>(rank);
  raw.slice.boxes.push_back({counts_member(json, "offsets", origin), counts_member(json, "sizes", origin)});
  return raw;
}

StoredTensor finish_tensor(const std::string& name, const Json& json, std::vector<Raw> raws,
                           const std::string& origin) {
  StoredTensor tensor;
  tensor.dtype = dtype_from_name(text_member(json, "dtype", origin));
  tensor.shape = counts_member(json, "shape", origin);
  std::int64_t bytes = size_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape)
    if (__builtin_mul_overflow(bytes, size, &bytes)) throw UsageError("{}: 'shape' has an impossible size", origin);
  for (Raw& raw : raws) {
    if (raw.flat) {
      if (raw.offset > tensor.elements() || raw.count > tensor.elements() - raw.offset)
        throw UsageError("{}: a slice ends beyond element {}", origin, tensor.elements());
      raw.slice.boxes = boxes_of_run(whole_box(tensor.shape), raw.offset, raw.count);
    }
    tensor.slices.push_back(std::move(raw.slice));
  }
  if (const std::string problem = tiling_problem(tensor); !problem.empty())
    throw UsageError("{}: the slices do not tile the tensor: {}", origin, problem);
  for (Slice& slice : tensor.slices) {
    if (slice.entry.empty()) slice.entry = entry_name(name, tensor.shape, slice.boxes.front());
    const std::int64_t size = slice.elements() * size_of(tensor.dtype);
    const std::int64_t blocks = size / kBlockBytes + (size % kBlockBytes != 0);
    if (static_cast<std::int64_t>(slice.hashes.size()) != blocks)
      throw UsageError("{}: 'xxh3' must hold {} hashes", origin, blocks);
  }
  return tensor;
}

// Follows the parser through an index and takes each slice and each tensor out of the document when it is complete, so
// that the document is never in memory as a whole. Refuses a part that has no place in an index as soon as it begins.
class IndexReader {
 public:
  explicit IndexReader(const std::string& origin) : origin_(origin) {}

  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::key:
        keys_.resize(static_cast<std::size_t>(depth));
        keys_[static_cast<std::size_t>(depth - 1)] = value.get<std::string>();
        // tensors.<name>.<key>, and within a slice
        if (depth == 1 && !known_.insert(keys_[0]).second) refuse("'" + keys_[0] + "' appears twice");
        if (depth == 2 && keys_[0] == "tensors" && index_.contains(keys_[1]))
          refuse("tensor '" + keys_[1] + "' appears twice");
        return true;
      case Event::object_start:
        if (depth != 0 && !(depth == 1 && at("tensors")) && !(depth == 2 && in_tensors()) &&
            !(depth == 4 && in_tensors() && keys_.size() >= 3 && keys_[2] == "slices"))
          refuse("an object where none belongs");
        if (depth == 2) raws_.clear();
        return true;
      case Event::array_start:
        if (!in_tensors() || !(depth == 3 || depth == 5)) refuse("a list where none belongs");
        return true;
      case Event::object_end:
        if (depth == 4 && in_tensors()) {
          raws_.push_back(parse_slice(value, place()));
          return false;
        }
        if (depth == 2 && in_tensors()) {
          index_.emplace(keys_[1], finish_tensor(keys_[1], value, std::move(raws_), place()));
          raws_.clear();
          return false;
        }
        return true;
      default:
        return true;
    }
  }
  Index take() { return std::move(index_); }

 private:
  bool at(std::string_view key) const { return !keys_.empty() && keys_[0] == key; }
  bool in_tensors() const { return keys_.size() >= 2 && keys_[0] == "tensors"; }
  std::string place() const { return fmt::format("{}: tensor '{}'", origin_, keys_[1]); }
  [[noreturn]] void refuse(const std::string& what) const { throw UsageError("{}: {}", origin_, what); }

  const std::string& origin_;
  std::vector<std::string> keys_;  // keys of the open objects
  std::unordered_set<std::string> known_;
  std::vector<Raw> raws_;
  Index index_;
};

}  // namespace

std::int64_t Slice::elements() const {
  std::int64_t sum = 0;
  for (const Box& box : boxes) sum += box.elements();
  return sum;
}

std::string tiling_problem(const StoredTensor& tensor) {
  std::vector<const Box*> boxes;
  for (const Slice& slice : tensor.slices)
    for (const Box& box : slice.boxes) boxes.push_back(&box);
  return molen::tiling_problem(tensor.shape, boxes);
}

std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape, const Box& box) {
  return box.sizes == shape ? tensor : fmt::format("{}@{}", tensor, fmt::join(box.offsets, ","));
}

std::string print_index(const Index& index) {
  std::string text = fmt::format(R"({{"format":"molen-checkpoint","format_version":{},"block_bytes":{},"tensors":{{)",
                                 kFormatVersion, kBlockBytes);
  const char* between = "";
  for (const auto& [name, tensor] : index) {
    text += fmt::format("{}\n{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"slices\":[", between, Json(name).dump(),
                        name_of(tensor.dtype), fmt::join(tensor.shape, ","));
    between = ",";
    const char* separator = "";
    for (const Slice& slice : tensor.slices) {
      const Box& box = slice.boxes.front();
      text += fmt::format(R"({}{{"rank":{},"offsets":[{}],"sizes":[{}],"xxh3":[)", separator, slice.rank,
                          fmt::join(box.offsets, ","), fmt::join(box.sizes, ","));
      separator = ",";
      for (std::size_t i = 0; i < slice.hashes.size(); ++i)
        text += fmt::format("{}\"{}\"", i == 0 ? "" : ",", slice.hashes[i]);
      text += "]}";
    }
    text += "]}";
  }
  return text + "}}\n";
}

namespace {

// Passes the characters of [begin, end) to the parser. Refuses a NUL, which would end this parser's input but not that
// of other readers.
template <class Iterator>
Index parse_characters(Iterator begin, Iterator end, const std::string& origin) {
  IndexReader reader(origin);
  Json rest;
  try {
    rest = Json::parse(begin, end, std::ref(reader));
  } catch (const Json::exception& error) {
    throw UsageError("{}: not valid JSON: {}", origin, error.what());
  }
  check_format(rest, origin);
  if (count_member(rest, "block_bytes", origin) != kBlockBytes)
    throw UsageError("{}: 'block_bytes' must be {}", origin, kBlockBytes);
  if (!json_member(rest, "tensors", origin).is_object()) throw UsageError("{}: 'tensors' must be an object", origin);
  return reader.take();
}

// Reads a file's characters from its beginning, with one block in memory, and hashes them.
class Characters {
 public:
  explicit Characters(const File& file) : file_(file), block_(kBlock) { fill(); }

  bool at_end() const { return at_ == size_; }
  char now() const {
    if (block_[at_] == '\0') throw UsageError("{}: not valid JSON: a NUL byte", file_.path().string());
    return block_[at_];
  }
  void advance() {
    if (++at_ == size_) fill();
  }
  // Returns the hash of the whole file, whatever part was consumed.
  std::string sha256() {
    while (size_ > 0) fill();
    return hash_.hex();
  }

  // The parser's iterator: copies share the file's position.
  struct Iterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;
    Characters* of = nullptr;  // null: the end
    char operator*() const { return of->now(); }
    Iterator& operator++() {
      of->advance();
      return *this;
    }
    Iterator operator++(int) { return ++*this; }
    bool operator==(const Iterator& other) const { return ends() == other.ends(); }
    bool ends() const { return of == nullptr || of->at_end(); }
  };
  Iterator begin() { return {this}; }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 18;

  void fill() {
    at_ = 0;
    size_ = file_.read_some(block_.data(), block_.size(), position_);
    position_ += static_cast<std::int64_t>(size_);
    hash_.update(block_.data(), size_);
  }

  const File& file_;
  std::vector<char> block_;
  std::size_t at_ = 0, size_ = 0;
  std::int64_t position_ = 0;
  Sha256 hash_;
};

}  // namespace

Index parse_index(std::string_view text, const std::string& origin) {
  if (text.find('\0') != std::string_view::npos) throw UsageError("{}: not valid JSON: a NUL byte", origin);
  return parse_characters(text.begin(), text.end(), origin);
}

Index read_index(const File& file, const std::string& sha256) {
  const std::string origin = file.path().string();
  const auto require_hash = [&](Characters& characters) {
    if (characters.sha256() != sha256)
      throw DamagedError("{}: does not match the hash in state.json: the file was altered or cut short", origin);
  };
  Characters characters(file);
  try {
    Index index = parse_characters(characters.begin(), Characters::Iterator{}, origin);
    require_hash(characters);
    return index;
  } catch (const VersionError&) {
    require_hash(characters);  // first, because a damaged version number is not another version
    throw;
  }
}

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

}  // namespace molen::checkpoint
