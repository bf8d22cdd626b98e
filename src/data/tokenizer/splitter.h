// Cuts text into the pieces within which byte-level BPE merges.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/scan.h"

namespace molen::data {

// The PCRE2 match data of one thread.
class RegexScratch {
 public:
  RegexScratch() = default;
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Splitter;
  void* match_data_ = nullptr;
  void* context_ = nullptr;
  void* stack_ = nullptr;
};

// Immutable after construction; shared by threads.
class Splitter {
 public:
  // `pattern` is the pattern as written in the file. Throws UsageError when it is not supported. The two known patterns
  // use the scanners; all others (and, with `force_regex`, these too) use PCRE2.
  Splitter(std::string pattern, std::string_view origin, bool force_regex = false);

  const std::string& pattern() const { return pattern_; }

  // Calls piece(string_view) for each piece in order; together they are `text`, which must be valid UTF-8. Throws Error
  // when the pattern exceeds the engine's match limits.
  template <class F>
  void split(std::string_view text, RegexScratch& scratch, F&& piece) const {
    const auto* p = reinterpret_cast<const scan::Byte*>(text.data());
    const auto* const end = p + text.size();
    const auto emit = [&](const scan::Byte* from, const scan::Byte* to) {
      piece(std::string_view(reinterpret_cast<const char*>(from), static_cast<std::size_t>(to - from)));
    };
    if (rule_ == Rule::kRegex) return split_regex(text, scratch, piece);
    const ClassTable& table = ClassTable::get();
    while (p < end) {
      const scan::Byte* const q =
          rule_ == Rule::kGpt2 ? scan::next_gpt2(table, p, end) : scan::next_llama3(table, p, end);
      emit(p, q);
      p = q;
    }
  }

 private:
  enum class Rule { kGpt2, kLlama3, kRegex };

  template <class F>
  void split_regex(std::string_view text, RegexScratch& scratch, F&& piece) const {
    std::size_t at = 0, first = 0, last = 0;
    while (at < text.size() && match(text, at, scratch, first, last)) {
      if (first > at) piece(text.substr(at, first - at));  // text that no alternative matches is a piece too
      piece(text.substr(first, last - first));
      at = last;
    }
    if (at < text.size()) piece(text.substr(at));
  }
  bool match(std::string_view text, std::size_t at, RegexScratch& scratch, std::size_t& first, std::size_t& last) const;

  std::string pattern_;
  Rule rule_;
  std::shared_ptr<const void> code_;  // pcre2_code
};

}  // namespace molen::data
