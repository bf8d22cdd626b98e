// Compares the scanners with their regular expressions, and the character classes with each other.
#include "data/tokenizer/scan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/test_golden.h"
#include "data/tokenizer/pattern.h"
#include "data/tokenizer/splitter.h"

namespace molen::data {
namespace {

std::vector<std::string_view> pieces(const Splitter& splitter, std::string_view text) {
  static RegexScratch scratch;
  std::vector<std::string_view> out;
  splitter.split(text, scratch, [&](std::string_view piece) { out.push_back(piece); });
  return out;
}

struct Both {
  Splitter scanner, regex;
  explicit Both(const char* pattern) : scanner(pattern, "test"), regex(pattern, "test", true) {}
  void expect_equal(const std::string& text) const { ASSERT_EQ(pieces(scanner, text), pieces(regex, text)) << text; }
};

TEST(Scan, EqualsTheRegexOnAllShortStrings) {
  const std::vector<std::string> symbols = {"a",  "1",  "s",  "l", "L",        "'",        " ",
                                            "\n", "\r", "\t", ".", "\xc2\xa0", "\xc5\xbf", "\xcc\x81"};
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const Both both(pattern);
    for (std::size_t code = 0; code < 14 * 14 * 14 * 14; ++code) {
      std::string text;
      for (std::size_t rest = code, i = 0; i < 4; ++i, rest /= 14) text += symbols[rest % 14];
      both.expect_equal(text);
    }
  }
}

TEST(Scan, EqualsTheRegexOnEveryCodePoint) {
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const Both both(pattern);
    std::string text;
    for (std::uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      for (const char* before : {"", " ", "x", "'", "\n", "7"}) {
        if (c % 6 != static_cast<std::uint32_t>(*before) % 6 && c > 0x3000) continue;
        text += before;
        append_utf8(text, c);
      }
      if (text.size() < 4096) continue;
      both.expect_equal(text);
      text.clear();
    }
    both.expect_equal(text);
  }
}

TEST(Scan, EqualsTheRegexOnRandomStrings) {
  static const char* const kPieces[] = {
      "a",  "B",  "'s",   "'LL", "'\xc5\xbf",    "'v", "1",  "22", "\xc2\xb2",         " ",
      "  ", "\n", "\r\n", "\t",  "\xe3\x80\x80", ".",  "!!", "_",  "\xf0\x9f\x98\x80", "\xe6\x97\xa5"};
  std::mt19937_64 random(11);
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const Both both(pattern);
    for (int round = 0; round < 100'000; ++round) {
      std::string text;
      for (std::uint64_t n = random() % 12; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
      both.expect_equal(text);
    }
  }
}

// A million spaces, letters or line ends must not backtrack.
TEST(Scan, LongRunsAreLinear) {
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const Both both(pattern);
    for (const char c : {' ', 'a', '\n', '1', '.'}) {
      both.expect_equal(std::string(1'000'000, c));
      both.expect_equal(std::string(1'000'000, c) + "x");
    }
  }
}

TEST(Pattern, RefusesWhatEnginesReadDifferently) {
  const GoldenMessages golden;
  for (const char* pattern : {"",        "a(",     "a)",           "[a",           "[",          "(?<=a)b",
                              "(?<n>a)", "(a)\\1", "\\w+",         "\\h",          "\\bx",       "^a",
                              "a$",      ".",      "[[:alpha:]]",  "[a&&b]",       "\\p{Greek}", "\\pL",
                              "\\p{^L}", "\\p{",   "(?i:ss)",      "(?i:\\p{Lu})", "(?i:[a-z])", "a{2}+",
                              "a{2}?",   "a{,3}",  "a{3,2}",       "a{99999}",     "*a",         "a**b(",
                              "(?>a)",   "\\x41",  "\\",           "[]a]",         "[\\s-z]",    "\\K",
                              "\\R",     "\\X",    "\\u0041",      "(*FAIL)",      "(?R)",       "a|",
                              "x*",      "\xff",   "(?i:\xc3\x9f)"})
    EXPECT_NOTED(Splitter(pattern, "test"), UsageError) << pattern;
  EXPECT_NOTED(Splitter(std::string(100, '(') + "a" + std::string(100, ')'), "test"), UsageError);
  EXPECT_NOTED(Splitter(std::string(5000, 'a'), "test"), UsageError);
}

// A quantifier without an operand is an error, not a hang.
TEST(Pattern, QuantifiersNeedSomethingToRepeat) {
  const GoldenMessages golden;
  for (const char* bad : {"*", "+a", "?", "a|*", "(*)", "a**b", "a{2}{3}", "{2}", "a{", "a{,3}", "a{3,2", "a{1,2,3}",
                          "a{x}", "a{1001}", "a{1,1001}", "a{}", "[x-\\d]", "[x-[]"})
    EXPECT_NOTED(translate_pattern(bad, "test"), UsageError) << bad;
  for (const char* good : {"a*", "a+?", "a?+", "(ab)*", "a{2}", "a{2,}", "a{2,3}", "a{1000}", "a|b*", "a{0,1000}",
                           "[-\\d]", "[^-\\d]", "[\\d-]", "[a-z]"})
    EXPECT_NO_THROW(translate_pattern(good, "test")) << good;
}

TEST(Pattern, SaysWhatItRefusesAndWhere) {
  const auto why = [](const std::string& pattern) -> std::string {
    try {
      translate_pattern(pattern, "test");
    } catch (const UsageError& error) {
      const std::string text = error.what(), begin = "test: the split pattern has ";
      EXPECT_EQ(text.find(begin), 0u) << text;
      EXPECT_TRUE(text.ends_with("(it may mean something else in another regex engine): " + pattern)) << text;
      return text.substr(begin.size(), text.find(", which is not supported") - begin.size());
    }
    return "";
  };
  EXPECT_EQ(why("a{"), "an unclosed { at byte 1");
  EXPECT_EQ(why("ab{}"), "a wrong repeat at byte 2");
  EXPECT_EQ(why("a{,3}"), "a repeat other than {m}, {m,} or {m,n} at byte 1");
  EXPECT_EQ(why("a{3,2}"), "a wrong repeat at byte 1");
  EXPECT_EQ(why("a{1001}"), "a repeat beyond 1000 at byte 1");
  EXPECT_EQ(why("a{2}?"), "a quantifier after {} at byte 4");
  EXPECT_EQ(why("a{2}*"), "a quantifier after {} at byte 4");
  EXPECT_EQ(why("*a"), "a quantifier without anything to repeat at byte 0");
  EXPECT_EQ(why("a)"), "a ')' without '(' at byte 1");
}

TEST(Unicode, EveryCodePointHasOneCategory) {
  std::uint64_t count = 0;
  for (const char* group : {"C", "L", "M", "N", "P", "S", "Z"})
    for (const CharRange& range : category_ranges(group)) count += range.last - range.first + 1;
  EXPECT_EQ(count, 0x110000u);
  const std::vector<CharRange> unassigned = category_ranges("Cn");
  EXPECT_EQ(unassigned.back().first, 0x10fffeu);
  EXPECT_EQ(unassigned.back().last, 0x10ffffu);
  EXPECT_TRUE(category_ranges("").empty());
  EXPECT_TRUE(category_ranges("Lux").empty());
}

TEST(Unicode, LettersThatCountAsSymbolsArePartOfWords) {
  for (const std::uint32_t c : {0x24b6u, 0x24e9u, 0x1f130u, 0x1f149u, 0x1f150u, 0x1f169u, 0x1f170u, 0x1f189u, 0x200cu,
                                0x200du, 0x5fu, 0x41u, 0x660u, 0x2160u, 0x301u})
    EXPECT_TRUE(is_word_char(c)) << c;
  for (const std::uint32_t c : {0x24b5u, 0x1f12fu, 0x1f14au, 0x1f18au, 0x20u, 0x2du, 0x200bu, 0x200eu, 0xb2u})
    EXPECT_FALSE(is_word_char(c)) << c;
}

TEST(Pattern, MatchLimitsHold) {
  const GoldenMessages golden;
  const Splitter splitter("(?:a+)+[bc]", "test");
  EXPECT_NOTED(pieces(splitter, std::string(5000, 'a')), Error);
}

TEST(Pattern, GapsArePieces) {
  const Splitter splitter("\\p{L}+", "test");
  EXPECT_EQ(pieces(splitter, "ab, cd!"), (std::vector<std::string_view>{"ab", ", ", "cd", "!"}));
  EXPECT_EQ(pieces(splitter, "12"), (std::vector<std::string_view>{"12"}));
}

TEST(Unicode, ClassesAreConsistent) {
  EXPECT_EQ(ClassTable::get().of('a'), kLetter);
  EXPECT_EQ(ClassTable::get().of(0x2ebf0), kLetter);  // new in 15.1
  EXPECT_EQ(ClassTable::get().of(0xbd), kNumber);
  EXPECT_EQ(ClassTable::get().of(0x180e), kOther);
  EXPECT_EQ(ClassTable::get().of(0x10ffff), kOther);
  const auto count = [](const std::vector<CharRange>& ranges) {
    std::size_t n = 0;
    for (const CharRange& r : ranges) n += r.last - r.first + 1;
    return n;
  };
  EXPECT_EQ(count(category_ranges("L")) + count(complement(category_ranges("L"))), 0x110000u - 0x800u);
  EXPECT_TRUE(category_ranges("Xx").empty());
}

TEST(Unicode, ReplacesMaximalParts) {
  const std::string r = "\xef\xbf\xbd";
  // The example table of the Unicode standard, section 3.9.
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80\xff"), r + r + r + r + r);
  EXPECT_EQ(replace_invalid_utf8("ok \xe2\x82\xac"), "ok \xe2\x82\xac");
}

TEST(Unicode, ByteAlphabetIsABijection) {
  std::string all, back;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  ASSERT_TRUE(from_byte_alphabet(to_byte_alphabet(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_byte_alphabet(" \n"), "\xc4\xa0\xc4\x8a");
  EXPECT_FALSE(from_byte_alphabet("a b", back));
}

}  // namespace
}  // namespace molen::data
