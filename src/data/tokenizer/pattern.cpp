#include "data/tokenizer/pattern.h"

#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace molen::data {
namespace {

constexpr std::size_t kMaxPattern = 4096;
constexpr int kMaxGroups = 50;
constexpr int kMaxRepeat = 1000;

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view origin) : in_(pattern), origin_(origin) {}

  std::string translate() {
    if (in_.empty()) refuse("an empty pattern");
    if (in_.size() > kMaxPattern) refuse("a pattern longer than 4096 bytes");
    if (!valid_utf8(in_)) refuse("invalid UTF-8");
    while (at_ < in_.size()) element();
    if (groups_.size() != 1) refuse("an unclosed group");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw UsageError(
        "{}: the split pattern has {} at byte {}, which is not supported (it may mean something else in another regex "
        "engine): {}",
        origin_, what, at_, in_.substr(0, 300));
  }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool folded() const { return groups_.back(); }

  void element() {
    const char c = peek();
    if (c == '\\') return escape(false);
    if (c == '[') return char_class();
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    if (c == '?' || c == '*' || c == '+') return quantifier();
    if (c == '{') return braces();
    if (c == '^' || c == '$') refuse("an anchor");
    if (c == '.') refuse("'.'");
    if (c == '\0') refuse("a NUL");
    literal();
    atom_ = c != '|';
  }

  // Oniguruma folds some letter pairs to one character (ss and U+00DF), PCRE2 does not.
  void literal() {
    if (folded()) {
      if (static_cast<unsigned char>(peek()) >= 0x80) refuse("a non-ASCII letter in (?i:");
      const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
      const std::string pair{lower(peek()), lower(peek(1))};
      for (const char* folds : {"ss", "st", "ff", "fi", "fl"})
        if (pair == folds) refuse("a pair of letters in (?i: that folds to one character");
    }
    out_.push_back(in_[at_++]);
  }

  void escape(bool in_class) {
    const char c = peek(1);
    if (c == 'p' || c == 'P') return property(in_class);
    if (c == 's' || c == 'S') return emit(space_ranges(), c == 'S', in_class, 2);
    if (c == 'd' || c == 'D') return emit(category_ranges("Nd"), c == 'D', in_class, 2);
    const bool control = c == 'r' || c == 'n' || c == 't' || c == 'f';
    const bool punctuation = c > ' ' && c < 0x7f && !std::isalnum(static_cast<unsigned char>(c));
    if (!control && !punctuation) refuse("an escape other than \\p \\P \\s \\S \\d \\D \\r \\n \\t \\f or punctuation");
    out_.append(in_.substr(at_, 2));
    at_ += 2;
    atom_ = true;
  }

  void property(bool in_class) {
    const bool negated = peek(1) == 'P';
    const std::size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property without braces");
    const std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const std::vector<CharRange> ranges = category_ranges(name);
    if (ranges.empty()) refuse("a property that is no general category");
    if (folded()) refuse("a property in (?i:");
    emit(ranges, negated, in_class, close + 1 - at_);
  }

  void emit(const std::vector<CharRange>& ranges, bool negated, bool in_class, std::size_t length) {
    if (!in_class) out_.append(negated ? "[^" : "[");
    // Outside a class, "[^" negates; inside a class, the complement is written out.
    for (const CharRange& range : negated&& in_class ? complement(ranges) : ranges)
      out_.append(fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last));
    if (!in_class) out_.push_back(']');
    at_ += length;
    atom_ = true;
  }

  void char_class() {
    if (folded()) refuse("a class in (?i:");
    out_.push_back('[');
    ++at_;
    if (peek() == '^') {
      out_.push_back('^');
      ++at_;
    }
    if (peek() == ']') refuse("an empty class");
    while (peek() != ']') {
      if (at_ >= in_.size()) refuse("an unclosed class");
      class_member();
    }
    out_.push_back(']');
    ++at_;
    atom_ = true;
  }

  void class_member() {
    const char c = peek();
    if (c == '[') refuse("a class inside a class");
    if (c == '&' && peek(1) == '&') refuse("a class intersection");
    if (c == '\0') refuse("a NUL");
    if (c == '\\') {
      const char kind = peek(1);
      escape(true);
      const bool set = kind == 'p' || kind == 'P' || kind == 's' || kind == 'S' || kind == 'd' || kind == 'D';
      if (set && peek() == '-' && peek(1) != ']') refuse("a range that starts with a set");
      return;
    }
    // A lone '-' is a literal only next to a bracket.
    if (c == '-' && in_[at_ - 1] != '[' && in_[at_ - 1] != '^' && peek(1) != ']') {
      if (peek(1) == '\\' || peek(1) == '[') refuse("a range that ends with an escape");
    }
    out_.push_back(in_[at_++]);
  }

  void open_group() {
    if (groups_.size() > kMaxGroups) refuse("groups nested deeper than 50");
    const std::string_view rest = in_.substr(at_);
    bool fold = folded();
    std::size_t length = 3;
    if (rest.starts_with("(?:") || rest.starts_with("(?=") || rest.starts_with("(?!")) {
    } else if (rest.starts_with("(?i:")) {
      fold = true;
      length = 4;
    } else if (!rest.starts_with("(?")) {
      out_.append("(?:");  // its capture is never used
      at_ += 1;
      groups_.push_back(fold);
      atom_ = false;
      return;
    } else {
      refuse("a group other than (?: (?i: (?= (?!");
    }
    out_.append(rest.substr(0, length));
    at_ += length;
    groups_.push_back(fold);
    atom_ = false;
  }

  void close_group() {
    if (groups_.size() == 1) refuse("a ')' without '('");
    groups_.pop_back();
    out_.push_back(')');
    ++at_;
    atom_ = true;
  }

  void need_atom() const {
    if (!atom_) refuse("a quantifier without anything to repeat");
  }

  void quantifier() {
    need_atom();
    out_.push_back(in_[at_++]);
    if (peek() == '?' || peek() == '+') out_.push_back(in_[at_++]);  // lazy, possessive: the same in both
    atom_ = false;
  }

  void braces() {
    need_atom();
    const std::size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("an unclosed {");
    const std::string_view body = in_.substr(at_ + 1, close - at_ - 1);
    int numbers[2] = {-1, -1};
    int which = 0;
    for (const char c : body) {
      if (c == ',' && which == 0 && numbers[0] >= 0) {
        which = 1;
      } else if (c >= '0' && c <= '9') {
        numbers[which] = std::max(numbers[which], 0) * 10 + (c - '0');
        if (numbers[which] > kMaxRepeat) refuse("a repeat beyond 1000");
      } else {
        refuse("a repeat other than {m}, {m,} or {m,n}");
      }
    }
    if (numbers[0] < 0 || (numbers[1] >= 0 && numbers[1] < numbers[0])) refuse("a wrong repeat");
    out_.append(in_.substr(at_, close + 1 - at_));
    at_ = close + 1;
    if (peek() == '?' || peek() == '+' || peek() == '*' || peek() == '{') refuse("a quantifier after {}");
    atom_ = false;
  }

  std::string_view in_, origin_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> groups_ = {false};  // whether each open group ignores case
  bool atom_ = false;                   // whether a quantifier may follow
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view origin) {
  return Translator(pattern, origin).translate();
}

}  // namespace molen::data
