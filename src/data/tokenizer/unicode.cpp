#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"

namespace molen::data {
namespace {

#include "data/tokenizer/unicode_table.inc"

constexpr std::uint32_t kLimit = 0x110000;
constexpr std::uint32_t kCategoryMask = 31;

std::uint32_t run_end(std::size_t run) {
  return run + 1 < std::size(kCategoryRuns) ? kCategoryRuns[run + 1] >> 5 : kLimit;
}

void append_range(std::vector<CharRange>& ranges, std::uint32_t first, std::uint32_t last) {
  if (!ranges.empty() && ranges.back().last + 1 == first) {
    ranges.back().last = last;
  } else {
    ranges.push_back({first, last});
  }
}

std::string_view category_of(std::uint32_t c) {
  const auto after = std::upper_bound(std::begin(kCategoryRuns), std::end(kCategoryRuns), c << 5 | kCategoryMask);
  return kCategoryNames[*std::prev(after) & kCategoryMask];
}

}  // namespace

const char* const kUnicodeVersion = kTableVersion;

std::vector<CharRange> category_ranges(std::string_view name) {
  std::vector<CharRange> ranges;
  if (name.empty() || name.size() > 2) return ranges;
  for (std::size_t i = 0; i < std::size(kCategoryRuns); ++i) {
    if (std::string_view(kCategoryNames[kCategoryRuns[i] & kCategoryMask]).starts_with(name))
      append_range(ranges, kCategoryRuns[i] >> 5, run_end(i) - 1);
  }
  return ranges;
}

const std::vector<CharRange>& space_ranges() {
  static const std::vector<CharRange> ranges = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                                {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                                {0x205f, 0x205f}, {0x3000, 0x3000}};
  return ranges;
}

std::vector<CharRange> complement(const std::vector<CharRange>& ranges) {
  std::vector<CharRange> out;
  const auto add = [&](std::uint32_t first, std::uint32_t end) {  // [first, end), without the surrogates
    if (first < std::min<std::uint32_t>(end, 0xd800)) out.push_back({first, std::min<std::uint32_t>(end, 0xd800) - 1});
    if (std::max<std::uint32_t>(first, 0xe000) < end) out.push_back({std::max<std::uint32_t>(first, 0xe000), end - 1});
  };
  std::uint32_t next = 0;
  for (const CharRange& range : ranges) {
    add(next, range.first);
    next = range.last + 1;
  }
  add(next, kLimit);
  return out;
}

bool is_word_char(std::uint32_t c) {
  if (c == 0x200c || c == 0x200d) return true;  // Join_Control
  // Alphabetic characters of the symbol category: circled and squared Latin letters.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189))
    return true;
  const std::string_view category = category_of(c);
  return category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" || category == "Pc";
}

ClassTable::ClassTable() {
  std::vector<std::uint8_t> all(kLimit, kOther);
  const auto fill = [&](const std::vector<CharRange>& ranges, CharClass value) {
    for (const CharRange& range : ranges) std::fill(all.begin() + range.first, all.begin() + range.last + 1, value);
  };
  fill(category_ranges("L"), kLetter);
  fill(category_ranges("N"), kNumber);
  fill(space_ranges(), kSpace);
  std::copy_n(all.begin(), low_.size(), low_.begin());
  std::map<std::string, std::uint16_t> seen;
  for (std::size_t block = 0; block < stage1_.size(); ++block) {
    const std::string content(all.begin() + block * 256, all.begin() + (block + 1) * 256);
    const auto [at, fresh] = seen.try_emplace(content, static_cast<std::uint16_t>(seen.size()));
    if (fresh) blocks_.insert(blocks_.end(), content.begin(), content.end());
    stage1_[block] = at->second;
  }
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

namespace {
struct ByteAlphabet {
  std::array<std::uint32_t, 256> to_char{};
  std::array<std::int16_t, 0x144> to_byte{};
  ByteAlphabet() {
    to_byte.fill(-1);
    std::uint32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      to_char[b] = printable ? b : next++;
      to_byte[to_char[b]] = static_cast<std::int16_t>(b);
    }
  }
};
const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}
}  // namespace

std::uint32_t byte_to_char(std::uint8_t byte) {
  return byte_alphabet().to_char[byte];
}

int char_to_byte(std::uint32_t c) {
  const auto& table = byte_alphabet().to_byte;
  return c < table.size() ? table[c] : -1;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, byte_to_char(static_cast<std::uint8_t>(byte)));
  return out;
}

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
  bytes.clear();
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    unsigned length = 0;
    const int byte = char_to_byte(decode_utf8(p + i, length));
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
    i += length;
  }
  return true;
}

}  // namespace molen::data
