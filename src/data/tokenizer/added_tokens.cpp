#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"

namespace molen::data {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Returns the start of the character that ends at text[end); end > 0.
std::size_t previous_char(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

bool is_space_point(std::uint32_t c) {
  return ClassTable::get().of(c) == kSpace;
}

bool word_before(std::string_view text, std::size_t at) {
  unsigned length;
  return at > 0 && is_word_char(decode_utf8(bytes_of(text) + previous_char(text, at), length));
}
bool word_after(std::string_view text, std::size_t at) {
  unsigned length;
  return at < text.size() && is_word_char(decode_utf8(bytes_of(text) + at, length));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at) {
  while (at > 0) {
    const std::size_t start = previous_char(text, at);
    unsigned length;
    if (!is_space_point(decode_utf8(bytes_of(text) + start, length))) break;
    at = start;
  }
  return at;
}
std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    unsigned length;
    if (!is_space_point(decode_utf8(bytes_of(text) + at, length))) break;
    at += length;
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::span<const AddedToken> tokens, bool normalized) {
  for (const AddedToken& token : tokens) {
    flags_.push_back({token.single_word, token.lstrip, token.rstrip, token.special});
    if (token.normalized != normalized || token.content.empty()) continue;
    sorted_.emplace_back(token.content, static_cast<std::int32_t>(flags_.size() - 1));
    starts_[static_cast<unsigned char>(token.content[0])] = true;
    any_ = true;
    any_plain_ = any_plain_ || !token.special;
  }
  std::sort(sorted_.begin(), sorted_.end());
}

// The tokens that begin with the text read so far are a range of the sorted tokens; each byte of text narrows it.
std::int32_t AddedTokenMatcher::longest(std::string_view text, std::size_t at, std::size_t& length) const {
  std::int32_t found = -1;
  auto first = sorted_.begin(), last = sorted_.end();
  for (std::size_t depth = 0; at + depth < text.size(); ++depth) {
    const auto byte = static_cast<unsigned char>(text[at + depth]);
    const auto byte_of = [depth](const auto& entry) {
      return entry.first.size() > depth ? static_cast<unsigned char>(entry.first[depth]) : -1;
    };
    // If all tokens of the range continue with this byte, the range stays as it is, without a search. Tokens with a
    // long common beginning give this case at every byte of it.
    if (byte_of(*first) != byte || byte_of(*(last - 1)) != byte) {
      first = std::lower_bound(first, last, byte, [&](const auto& entry, int b) { return byte_of(entry) < b; });
      last = std::upper_bound(first, last, byte, [&](int b, const auto& entry) { return b < byte_of(entry); });
      if (first == last) break;
    }
    if (first->first.size() != depth + 1) continue;
    found = first->second;
    length = depth + 1;
  }
  return found;
}

void AddedTokenMatcher::find(std::string_view whole, std::size_t first, std::size_t last, bool allow_special,
                             std::vector<Part>& out) const {
  const std::string_view text = whole.substr(first, last - first);
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    const std::int32_t token = starts_[static_cast<unsigned char>(text[at])] ? longest(text, at, length) : -1;
    if (token < 0) {
      ++at;
      continue;
    }
    std::size_t start = at, stop = at + length;
    at = stop;
    const Flags& flags = flags_[token];
    if (flags.special && !allow_special) continue;
    if (flags.single_word && (word_before(text, start) || word_after(text, stop))) continue;
    // As in Hugging Face, a token counts even when an earlier token has already taken the white space in which it
    // begins.
    if (flags.lstrip) start = std::max(skip_spaces_back(text, start), done);
    if (flags.rstrip) stop = skip_spaces(text, stop);
    if (done < start) out.push_back({-1, first + done, first + start});
    out.push_back({token, first + start, first + stop});
    done = stop;
  }
  if (done < text.size()) out.push_back({-1, first + done, first + text.size()});
}

}  // namespace molen::data
