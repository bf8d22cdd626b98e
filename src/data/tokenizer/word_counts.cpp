#include "data/tokenizer/word_counts.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "base/error.h"

namespace molen::data {

std::uint64_t WordCounts::hash_of(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

void WordCounts::add(std::string_view word, std::uint64_t hash, std::uint64_t count) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    if (slots_[i] == kNone) {
      if (words_.size() >= kNone - 1 || word.size() > std::numeric_limits<std::uint32_t>::max())
        throw Error("tokenizer training: too many or too long words");
      slots_[i] = static_cast<std::uint32_t>(words_.size());
      words_.push_back({hash, text_.size(), count, static_cast<std::uint32_t>(word.size())});
      text_.insert(text_.end(), word.begin(), word.end());
      if (words_.size() * 2 > slots_.size()) grow();
      return;
    }
    Word& known = words_[slots_[i]];
    if (known.hash == hash && known.size == word.size() &&
        std::memcmp(text_.data() + known.text, word.data(), word.size()) == 0) {
      known.count += count;
      return;
    }
  }
}

void WordCounts::merge(const WordCounts& other) {
  for (std::size_t i = 0; i < other.size(); ++i) add(other.word(i), other.words_[i].hash, other.count(i));
}

void WordCounts::grow() {
  slots_.assign(slots_.size() * 2, kNone);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t w = 0; w < words_.size(); ++w) {
    std::size_t i = words_[w].hash & mask;
    while (slots_[i] != kNone) i = (i + 1) & mask;
    slots_[i] = static_cast<std::uint32_t>(w);
  }
}

}  // namespace molen::data
