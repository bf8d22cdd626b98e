// Unicode data for the splitter: UTF-8, and the class of each code point.
//
// The tables are our own (unicode_table.inc), pinned to one Unicode version. A library's newer or older tables would
// split newly assigned letters differently, and the same text would get other ids on another machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace molen::data {

// The version of Unicode behind every class in this module; part of a tokenizer's fingerprint.
extern const char* const kUnicodeVersion;

// The four classes that split patterns tell apart: \p{L}, \p{N}, \s and the rest.
enum CharClass : std::uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

struct CharRange {
  std::uint32_t first, last;
};

// Returns the ranges (sorted, disjoint) of a general category ("Lu") or of a group ("L"); empty for an unknown name.
std::vector<CharRange> category_ranges(std::string_view name);
// Returns the white space that \s means, as in Oniguruma.
const std::vector<CharRange>& space_ranges();
// Returns all code points (without surrogates) that are in none of `ranges`.
std::vector<CharRange> complement(const std::vector<CharRange>& ranges);

// Implements \w of the regex crate, which decides `single_word` of added tokens.
bool is_word_char(std::uint32_t code_point);

// Gives the class of a code point by two look-ups. There is one table for the process.
class ClassTable {
 public:
  static const ClassTable& get();
  CharClass ascii(unsigned char byte) const { return static_cast<CharClass>(low_[byte]); }
  CharClass of(std::uint32_t c) const {
    return static_cast<CharClass>(c < low_.size() ? low_[c] : blocks_[stage1_[c >> 8] * 256u + (c & 255)]);
  }

 private:
  ClassTable();
  std::array<std::uint8_t, 0x800> low_{};
  std::array<std::uint16_t, 0x1100> stage1_{};
  std::vector<std::uint8_t> blocks_;
};

// Decodes one code point of *valid* UTF-8 and stores its length in bytes.
inline std::uint32_t decode_utf8(const unsigned char* p, unsigned& length) {
  if (p[0] < 0x80) return length = 1, p[0];
  if (p[0] < 0xe0) return length = 2, (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
  if (p[0] < 0xf0) return length = 3, (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
  return length = 4, (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

// The byte alphabet of byte-level BPE writes each byte as a printable character. Bytes 0x21-0x7E, 0xA1-0xAC and
// 0xAE-0xFF are themselves; the other 68 become U+0100 and up, in order.
std::uint32_t byte_to_char(std::uint8_t byte);
// Returns -1 for a character that stands for no byte.
int char_to_byte(std::uint32_t code_point);
std::string to_byte_alphabet(std::string_view bytes);
// Returns false if some character stands for no byte; `bytes` is then unspecified. `text` must be valid UTF-8.
bool from_byte_alphabet(std::string_view text, std::string& bytes);

}  // namespace molen::data
