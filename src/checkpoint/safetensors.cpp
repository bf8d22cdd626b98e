// The header's rules, in the order of the reference implementation (validate, then deserialise), plus molen's own.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"

namespace molen::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; add byte swaps for this machine");

struct Format {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};
constexpr std::array kFormats{Format{"BOOL", 8, DType::kBool},
                              Format{"F4", 4, std::nullopt},
                              Format{"F6_E2M3", 6, std::nullopt},
                              Format{"F6_E3M2", 6, std::nullopt},
                              Format{"U8", 8, DType::kU8},
                              Format{"I8", 8, DType::kI8},
                              Format{"F8_E5M2", 8, std::nullopt},
                              Format{"F8_E4M3", 8, std::nullopt},
                              Format{"F8_E8M0", 8, std::nullopt},
                              Format{"F8_E4M3FNUZ", 8, std::nullopt},
                              Format{"F8_E5M2FNUZ", 8, std::nullopt},
                              Format{"I16", 16, DType::kI16},
                              Format{"U16", 16, DType::kU16},
                              Format{"F16", 16, DType::kF16},
                              Format{"BF16", 16, DType::kBF16},
                              Format{"I32", 32, DType::kI32},
                              Format{"U32", 32, DType::kU32},
                              Format{"F32", 32, DType::kF32},
                              Format{"C64", 64, std::nullopt},
                              Format{"F64", 64, DType::kF64},
                              Format{"I64", 64, DType::kI64},
                              Format{"U64", 64, DType::kU64}};

const Format* find_format(std::string_view name) {
  const auto* found = std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return f.name == name; });
  return found == kFormats.end() ? nullptr : found;
}

// Returns the length of the well-formed UTF-8 sequence at the front (RFC 3629: no overlongs, no surrogates), or 0.
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0, surrogate = first == 0xED && second >= 0xA0;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90, beyond = first == 0xF4 && second >= 0x90;
    return tail(1) && tail(2) && tail(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Receives the header's JSON as a stream of events, so that a hostile header never becomes a tree in memory.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(SafetensorsHeader& header, std::string_view origin) : header_(header), origin_(origin) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::kShape) {
      if (tensor_.shape.size() == kMaxRank) fail("more than {} dimensions in tensor '{}'", kMaxRank, tensor_.name);
      if (value > static_cast<std::uint64_t>(INT64_MAX))
        fail("a dimension of tensor '{}' overflows: {}", tensor_.name, value);
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (where_ == Where::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) {
      metadata_bytes_ += key_.size() + value.size();
      if (header_.metadata.size() == kMaxMetadata || metadata_bytes_ > kMaxMetadataBytes)
        fail("more than {} entries or {} bytes in __metadata__", kMaxMetadata, kMaxMetadataBytes);
      header_.metadata[key_] = value;
      return true;
    }
    if (where_ != Where::kTensor || key_ != "dtype") return unexpected("a string");
    const Format* format = find_format(value);
    if (!format) fail("unknown dtype '{}' of tensor '{}'", value.substr(0, 40), tensor_.name);
    tensor_.dtype_name = value;
    tensor_.dtype = format->dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kRoot;
    } else if (where_ == Where::kRoot) {
      where_ = key_ == "__metadata__" ? Where::kMetadata : Where::kTensor;
      tensor_ = TensorInfo{};
      tensor_.name = key_;
      seen_ = {};
      offsets_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (where_ == Where::kRoot) {
      check_name(value);
      if (!names_.insert(value).second) fail("the name '{}' appears twice", value);
      if (names_.size() > kMaxTensors) fail("more than {} tensors", kMaxTensors);
    } else if (where_ == Where::kMetadata) {
      if (header_.metadata.contains(value)) fail("the key '{}' appears twice in __metadata__", value);
    } else {
      const std::array<std::string_view, 3> known{"dtype", "shape", "data_offsets"};
      const auto* found = std::find(known.begin(), known.end(), value);
      if (found == known.end()) fail("unknown key '{}' in tensor '{}'", value.substr(0, 40), tensor_.name);
      bool& seen = seen_[static_cast<std::size_t>(found - known.begin())];
      if (seen) fail("the key '{}' appears twice in tensor '{}'", value, tensor_.name);
      seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kTensor) {
      if (!seen_[0] || !seen_[1] || !seen_[2]) fail("tensor '{}' lacks dtype, shape or data_offsets", tensor_.name);
      header_.tensors.push_back(std::move(tensor_));
    }
    where_ = where_ == Where::kRoot ? Where::kStart : Where::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::kTensor || key_ == "dtype") return unexpected("an array");
    where_ = key_ == "shape" ? Where::kShape : Where::kOffsets;
    return true;
  }

  bool end_array() override {
    if (where_ == Where::kOffsets && offsets_ != 2)
      fail("data_offsets of tensor '{}' are not two numbers", tensor_.name);
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fail("the header is not valid JSON at byte {}: {}", position, error.what());
  }

 private:
  enum class Where { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError("{}: not a valid safetensors file: {}", origin_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool unexpected(std::string_view what) const {
    fail("unexpected {} in the header, at key '{}'", what, key_.substr(0, 80));
  }

  void check_name(const std::string& name) const {
    const std::string problem = name_problem(name);
    if (!problem.empty()) fail("{}", problem);
  }

  SafetensorsHeader& header_;
  std::string_view origin_;
  Where where_ = Where::kStart;
  std::string key_;
  TensorInfo tensor_;
  std::array<bool, 3> seen_{};
  int offsets_ = 0;
  std::unordered_set<std::string> names_;
  std::size_t metadata_bytes_ = 0;
};

// Returns the bytes of the longest string of a JSON text, escapes counted as written: the parser would hold a string
// three times.
std::size_t longest_string(std::string_view text) {
  std::size_t longest = 0;
  for (std::size_t at = text.find('"'); at != std::string_view::npos;) {
    std::size_t end = at + 1;
    while ((end = std::min(text.find_first_of("\"\\", end), text.size())) < text.size() && text[end] == '\\') end += 2;
    longest = std::max(longest, end - at - 1);
    at = end < text.size() ? text.find('"', end + 1) : std::string_view::npos;
  }
  return longest;
}

// Returns the bytes of a tensor, with overflow checks.
std::uint64_t checked_bytes(const TensorInfo& tensor, std::string_view origin) {
  std::uint64_t bits = find_format(tensor.dtype_name)->bits;
  bool overflow = false, empty = false;
  for (const std::int64_t size : tensor.shape) {
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits);
  }
  if (overflow || (empty && bits != 0)) {
    throw UsageError("{}: not a valid safetensors file: the size of tensor '{}' overflows", origin, tensor.name);
  }
  if (bits % 8 != 0) {
    throw UsageError("{}: not a valid safetensors file: tensor '{}' does not fill whole bytes", origin, tensor.name);
  }
  return bits / 8;
}

// Sorted by offset, the tensors must cover the buffer exactly: no hole, no overlap, no rest.
void check_layout(SafetensorsHeader& header, std::uint64_t file_size, std::string_view origin) {
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != position || tensor.end < tensor.begin) {
      throw UsageError(
          "{}: not a valid safetensors file: data_offsets of tensor '{}' are [{}, {}], expected to begin at {}", origin,
          tensor.name, tensor.begin, tensor.end, position);
    }
    const std::uint64_t bytes = checked_bytes(tensor, origin);
    if (bytes != tensor.end - tensor.begin) {
      throw UsageError(
          "{}: not a valid safetensors file: tensor '{}' has {} bytes by its shape, {} by its data_offsets", origin,
          tensor.name, bytes, tensor.end - tensor.begin);
    }
    position = tensor.end;
  }
  const std::uint64_t available = file_size - header.buffer_begin;
  if (position != available) {
    throw UsageError("{}: not a valid safetensors file: the header promises {} bytes of tensors, the file holds {}{}",
                     origin, position, available, available < position ? " (truncated?)" : "");
  }
}

}  // namespace

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  const Format* format = find_format(name);
  return format ? format->dtype : std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  for (const Format& format : kFormats)
    if (format.dtype == dtype) return format.name;
  throw Error("no safetensors name for {}", name_of(dtype));
}

std::string name_problem(std::string_view name) {
  if (name.size() > kMaxNameBytes)
    return fmt::format("a name of {} bytes, the limit is {}", name.size(), kMaxNameBytes);
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), control)) return "a name with control characters";
  if (name.find("..") != std::string_view::npos) return fmt::format("the name '{}' contains '..'", name);
  return "";
}

std::int64_t TensorInfo::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

SafetensorsHeader parse_safetensors(std::string_view bytes, std::uint64_t file_size, std::string_view origin) {
  const auto fail = [&](const std::string& why) {
    throw UsageError("{}: not a valid safetensors file: {}", origin, why);
  };
  if (file_size < 8 || bytes.size() < 8)
    fail(fmt::format("{} bytes, fewer than the 8 of the header's length", file_size));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeaderBytes) fail(fmt::format("a header of {} bytes, the limit is {}", length, kMaxHeaderBytes));
  if (length > file_size - 8 || length > bytes.size() - 8) {
    fail(fmt::format("a header of {} bytes in a file of {}", length, file_size));
  }
  const std::string_view text = bytes.substr(8, length);
  if (!is_utf8(text)) fail("the header is not UTF-8");
  if (text.empty() || text.front() != '{') fail("the header does not begin with '{'");
  // The JSON lexer takes NUL for the end of its input; other readers would read the rest, and ours would not.
  if (text.find('\0') != std::string_view::npos) fail("the header is not valid JSON: it contains a NUL byte");
  if (longest_string(text) > kMaxMetadataBytes)
    fail(fmt::format("a string of more than {} bytes in the header", kMaxMetadataBytes));
  SafetensorsHeader header;
  header.buffer_begin = 8 + length;
  HeaderHandler handler(header, origin);
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) fail("the header is not valid JSON");
  check_layout(header, file_size, origin);
  return header;
}

}  // namespace molen::checkpoint
