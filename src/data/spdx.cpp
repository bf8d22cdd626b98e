#include "data/spdx.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "data/text.h"

namespace molen::data {
namespace {

#include "data/spdx_list.inc"

constexpr int kMaxParentheses = 32;

// Returns "; did you mean 'MIT'?": the nearest identifier regardless of case, in the list's spelling.
template <std::size_t N>
std::string suggestion(std::string_view word, const std::string_view (&known)[N]) {
  std::vector<std::string> folded;
  for (const std::string_view id : known) folded.push_back(lower_case(id));
  std::string found;
  for (const std::string& id : folded)  // "CC0", "Apache-2"
    if (found.empty() && word.size() > 2 && id.starts_with(lower_case(word))) found = id;
  if (found.empty()) found = nearest(lower_case(word), folded);
  if (found.empty()) return "";
  const auto at = std::find(folded.begin(), folded.end(), found) - folded.begin();
  return fmt::format("; did you mean '{}'?", known[at]);
}

template <std::size_t N>
bool listed(std::string_view word, const std::string_view (&known)[N]) {
  return std::find(std::begin(known), std::end(known), word) != std::end(known);
}

// Returns whether `text` is at least one character, all of them letters, digits, '-' or '.'.
bool is_idstring(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '-' || c == '.');
  });
}

bool is_reference(std::string_view word) {
  constexpr std::string_view kLicence = "LicenseRef-", kDocument = "DocumentRef-";
  if (word.starts_with(kDocument)) {
    const std::size_t colon = word.find(':');
    if (colon == std::string_view::npos || !is_idstring(word.substr(kDocument.size(), colon - kDocument.size())))
      return false;
    word.remove_prefix(colon + 1);
  }
  return word.starts_with(kLicence) && is_idstring(word.substr(kLicence.size()));
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view origin) : text_(text), origin_(origin) { advance(); }

  void run() {
    expression(0);
    if (!word_.empty()) fail(fmt::format("AND, OR or the end was expected before '{}'", word_));
  }

 private:
  // Moves to the next word or parenthesis; empty at the end.
  void advance() {
    const auto space = [](char c) { return c == ' ' || c == '\t'; };
    while (at_ < text_.size() && space(text_[at_])) ++at_;
    const std::size_t first = at_;
    const auto single = [](char c) { return c == '(' || c == ')'; };
    if (at_ < text_.size() && single(text_[at_]))
      ++at_;
    else
      while (at_ < text_.size() && !space(text_[at_]) && !single(text_[at_])) ++at_;
    word_ = text_.substr(first, at_ - first);
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw UsageError(
        "{}: '{}' is no SPDX licence expression: {} (SPDX list {}; LicenseRef-NAME where a licence has no identifier)",
        origin_, text_.substr(0, 80), why, kSpdxListVersion);
  }

  void expression(int depth) {
    if (depth > kMaxParentheses) fail("too many parentheses");
    term(depth);
    while (word_ == "AND" || word_ == "OR") {
      advance();
      term(depth);
    }
  }
  void term(int depth) {
    if (word_ == "(") {
      advance();
      expression(depth + 1);
      if (word_ != ")") fail("a ')' is missing");
      return advance();
    }
    licence();
    if (word_ != "WITH") return;
    advance();
    if (!listed(word_, kSpdxExceptions))
      fail(fmt::format("no exception '{}'{}", word_, suggestion(word_, kSpdxExceptions)));
    advance();
  }
  void licence() {
    const bool no_name = word_.empty() || word_ == ")" || word_ == "AND" || word_ == "OR" || word_ == "WITH";
    if (no_name)
      fail(word_.empty() ? "a licence is missing at the end" : fmt::format("a licence is missing before '{}'", word_));
    std::string_view id = word_;
    if (!is_reference(id)) {
      if (id.size() > 1 && id.back() == '+') id.remove_suffix(1);
      if (!listed(id, kSpdxLicences)) fail(fmt::format("no licence '{}'{}", word_, suggestion(id, kSpdxLicences)));
    }
    advance();
  }

  std::string_view text_, origin_, word_;
  std::size_t at_ = 0;
};

}  // namespace

void check_spdx(std::string_view text, std::string_view origin) {
  Parser(text, origin).run();
}

}  // namespace molen::data
