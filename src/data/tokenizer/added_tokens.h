// Finds added tokens in text as Hugging Face does: leftmost, then longest.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/spec.h"

namespace molen::data {

class AddedTokenMatcher {
 public:
  // A part of a text: an added token or, when token < 0, text between added tokens. Offsets are in bytes.
  struct Part {
    std::int32_t token;  // index into the tokens given to the constructor
    std::size_t first, last;
  };

  AddedTokenMatcher() = default;
  // Uses those of `tokens` whose `normalized` flag equals the argument.
  AddedTokenMatcher(std::span<const AddedToken> tokens, bool normalized);

  // Returns whether a search can find anything.
  bool active(bool allow_special) const { return allow_special ? any_ : any_plain_; }
  // Appends the parts of text[first, last) to `out`. Special tokens count only with allow_special. Without it they are
  // ordinary text but, as in Hugging Face, that text is not searched for other added tokens.
  void find(std::string_view text, std::size_t first, std::size_t last, bool allow_special,
            std::vector<Part>& out) const;

 private:
  struct Flags {
    bool single_word, lstrip, rstrip, special;
  };
  // Returns the longest token that starts at text[at], or -1; stores its length in `length`.
  std::int32_t longest(std::string_view text, std::size_t at, std::size_t& length) const;

  std::vector<std::pair<std::string, std::int32_t>> sorted_;  // contents and tokens, by content
  std::array<bool, 256> starts_{};
  std::vector<Flags> flags_;
  bool any_ = false, any_plain_ = false;
};

}  // namespace molen::data
