#include "base/utf8.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

namespace molen {
namespace {

// Returns the length of the longest prefix of p[0..n) that begins a well-formed sequence; `complete` if it is a whole
// sequence. (Table 3-7 of the Unicode standard; n > 0.)
std::size_t well_formed_prefix(const unsigned char* p, std::size_t n, bool& complete) {
  complete = false;
  const unsigned lead = p[0];
  if (lead < 0x80) return complete = true, 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  std::size_t k = 1;
  while (k < length && k < n && p[k] >= (k == 1 ? low : 0x80) && p[k] <= (k == 1 ? high : 0xbf)) ++k;
  complete = k == length;
  return k;
}

}  // namespace

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

bool valid_utf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    bool complete = false;
    const std::size_t length = well_formed_prefix(p + i, text.size() - i, complete);
    if (complete) {
      out.append(text.substr(i, length));
    } else {
      out.append("\xef\xbf\xbd");
    }
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    bool complete = false;
    const std::size_t length = well_formed_prefix(p + i, text.size() - i, complete);
    const std::string_view character = text.substr(i, std::max<std::size_t>(length, 1));
    const bool control = (p[i] < 0x20 && p[i] != '\n' && p[i] != '\t') || p[i] == 0x7f ||
                         (p[i] == 0xc2 && length == 2 && p[i + 1] < 0xa0);
    const bool direction = (character >= "\xe2\x80\xaa" && character <= "\xe2\x80\xae") ||
                           (character >= "\xe2\x81\xa6" && character <= "\xe2\x81\xa9");
    if (direction && complete)
      out += fmt::format("\\u{:04x}", 0x2000 + (p[i + 1] & 0x3f) * 64 + (p[i + 2] & 0x3f));
    else if (!complete || control)
      for (const char byte : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    else
      out += character;
    i += character.size();
  }
  return out;
}

}  // namespace molen
