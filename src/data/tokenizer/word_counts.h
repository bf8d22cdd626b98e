// Counts words: an open-addressing table over one arena of text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace molen::data {

class WordCounts {
 public:
  WordCounts() : slots_(kStart, kNone) {}
  void add(std::string_view word, std::uint64_t count) { add(word, hash_of(word), count); }
  void merge(const WordCounts& other);
  std::size_t size() const { return words_.size(); }
  std::string_view word(std::size_t i) const { return {text_.data() + words_[i].text, words_[i].size}; }
  std::uint64_t count(std::size_t i) const { return words_[i].count; }

 private:
  static constexpr std::size_t kStart = 1 << 12;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Word {
    std::uint64_t hash, text, count;
    std::uint32_t size;
  };
  static std::uint64_t hash_of(std::string_view word);
  void add(std::string_view word, std::uint64_t hash, std::uint64_t count);
  void grow();

  std::vector<std::uint32_t> slots_;  // index into words_
  std::vector<Word> words_;
  std::vector<char> text_;
};

}  // namespace molen::data
