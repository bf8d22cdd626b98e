// Hand-written scanners for the two split patterns that almost every byte-level tokenizer uses. Each returns the end of
// the piece that starts at p (p < end, valid UTF-8). Each equals its regular expression on all input (tests:
// scan_test.cpp against PCRE2, tests/oracle/tokenizer_parity.py against Hugging Face), at about ten times its speed.
#pragma once

#include "data/tokenizer/unicode.h"

namespace molen::data {

inline constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace scan {

using Byte = unsigned char;

// Returns the class of the character at p; stores its length in bytes in `length`.
inline CharClass class_at(const ClassTable& table, const Byte* p, unsigned& length) {
  if (*p < 0x80) [[likely]]
    return length = 1, table.ascii(*p);
  return table.of(decode_utf8(p, length));
}

// Returns the end of the run of class C that starts at p (which may be end).
template <CharClass C>
inline const Byte* run(const ClassTable& table, const Byte* p, const Byte* end) {
  while (p < end) {
    unsigned length;
    if (class_at(table, p, length) != C) break;
    p += length;
  }
  return p;
}

inline const Byte* run_of(CharClass c, const ClassTable& table, const Byte* p, const Byte* end) {
  if (c == kLetter) return run<kLetter>(table, p, end);
  if (c == kNumber) return run<kNumber>(table, p, end);
  return run<kOther>(table, p, end);
}

// Returns the end of 's 't 're 've 'm 'll or 'd at p, which points to an apostrophe; p if there is none of them.
inline const Byte* contraction(const Byte* p, const Byte* end) {
  if (end - p < 2) return p;
  const Byte a = p[1], b = end - p > 2 ? p[2] : 0;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  return p;
}

// Does the same regardless of case; U+017F folds to s.
inline const Byte* contraction_any_case(const Byte* p, const Byte* end) {
  if (end - p < 2) return p;
  const Byte a = p[1], b = end - p > 2 ? p[2] : 0;
  const Byte x = a | 0x20, y = b | 0x20;
  if (a < 0x80) {
    if (x == 's' || x == 't' || x == 'm' || x == 'd') return p + 2;
    if ((x == 'r' && y == 'e') || (x == 'v' && y == 'e') || (x == 'l' && y == 'l')) return p + 3;
    return p;
  }
  return a == 0xc5 && b == 0xbf ? p + 3 : p;
}

// Scans \s+(?!\S)|\s+ at p. At the end of the text the piece is the whole run. Elsewhere it is all but the last
// character, which belongs to the next piece; a run of one character is its own piece.
inline const Byte* spaces(const ClassTable& table, const Byte* p, const Byte* end) {
  const Byte* last = p;
  const Byte* q = p;
  while (q < end) {
    unsigned length;
    if (class_at(table, q, length) != kSpace) return last == p ? q : last;
    last = q;
    q += length;
  }
  return end;
}

inline const Byte* next_gpt2(const ClassTable& table, const Byte* p, const Byte* end) {
  unsigned length;
  const CharClass c = class_at(table, p, length);
  if (*p == '\'') {
    const Byte* q = contraction(p, end);
    if (q != p) return q;
  }
  if (c != kSpace) return run_of(c, table, p + length, end);
  if (*p == ' ' && p + 1 < end) {
    const CharClass next = class_at(table, p + 1, length);
    if (next != kSpace) return run_of(next, table, p + 1 + length, end);
  }
  return spaces(table, p, end);
}

inline const Byte* line_ends(const Byte* p, const Byte* end) {
  while (p < end && (*p == '\r' || *p == '\n')) ++p;
  return p;
}

// Scans \s*[\r\n]+|\s+(?!\S)|\s+ at p: the piece ends at the run's last line end if it has one.
inline const Byte* spaces_and_lines(const ClassTable& table, const Byte* p, const Byte* end) {
  const Byte* last = p;  // start of the run's last character
  const Byte* lines = nullptr;
  const Byte* q = p;
  while (q < end) {
    unsigned length;
    if (class_at(table, q, length) != kSpace) break;
    last = q;
    if (*q == '\r' || *q == '\n') lines = q + 1;
    q += length;
  }
  if (lines != nullptr) return lines;
  return q == end || last == p ? q : last;
}

// max_digits: 3 for Llama-3.
inline const Byte* next_llama3(const ClassTable& table, const Byte* p, const Byte* end, int max_digits = 3) {
  unsigned length;
  const CharClass c = class_at(table, p, length);
  if (c == kLetter) return run<kLetter>(table, p + length, end);
  if (c == kNumber) {
    const Byte* q = p + length;
    for (int n = 1; n < max_digits && q < end && class_at(table, q, length) == kNumber; ++n) q += length;
    return q;
  }
  if (*p == '\'') {
    const Byte* q = contraction_any_case(p, end);
    if (q != p) return q;
  }
  const Byte* after = p + length;
  if (after < end && *p != '\r' && *p != '\n') {
    const CharClass next = class_at(table, after, length);
    if (next == kLetter) return run<kLetter>(table, after + length, end);
    if (*p == ' ' && next == kOther) return line_ends(run<kOther>(table, after + length, end), end);
  }
  if (c == kOther) return line_ends(run<kOther>(table, after, end), end);
  return spaces_and_lines(table, p, end);
}

}  // namespace scan
}  // namespace molen::data
