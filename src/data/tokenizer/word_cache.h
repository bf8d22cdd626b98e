// Caches the tokens of pieces. A text has few different words, so the cache answers most pieces.
//
// There are two levels. Pieces of at most 16 bytes and 3 tokens are in 32-byte slots, two to a cache line, compared as
// two words without touching other memory. Longer pieces (up to 64 bytes) are in a table with an arena, which is
// emptied when it is full. Not thread-safe: each thread has its own cache.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace molen::data {

class WordCache {
 public:
  static constexpr std::size_t kInline = 16, kInlineTokens = 3, kLongest = 64;

  WordCache() : slots_(kSlots), table_(kLongSlots) {}

  // A piece of 1 to 16 bytes as two words, zero-padded. `readable` bytes may be read from its start.
  struct Key {
    std::uint64_t low, high;
  };
  static Key key_of(std::string_view piece, std::size_t readable) {
    std::uint64_t words[2] = {0, 0};
    if (readable >= kInline) [[likely]] {
      std::memcpy(words, piece.data(), kInline);
      const unsigned n = static_cast<unsigned>(piece.size());
      if (n < 8) return {words[0] & ((std::uint64_t{1} << n * 8) - 1), 0};
      return {words[0], n == 16 ? words[1] : words[1] & ((std::uint64_t{1} << (n - 8) * 8) - 1)};
    }
    std::memcpy(words, piece.data(), piece.size());
    return {words[0], words[1]};
  }
  static std::uint64_t hash_of(Key key, std::size_t size) {
    const auto product = static_cast<unsigned __int128>(key.low ^ 0xa0761d6478bd642full ^ size << 56) *
                         (key.high ^ 0xe7037ed1a0b428dbull);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  struct alignas(32) Slot {
    std::uint64_t low = 0, high = 0;
    TokenId ids[kInlineTokens] = {0, 0, 0};
    std::uint8_t size = 0, count = 0;  // size 0: empty
    bool holds(Key key, std::size_t n) const { return low == key.low && high == key.high && size == n; }
  };
  // Returns the slot that holds the key, or null.
  const Slot* find(Key key, std::size_t size, std::uint64_t hash) const {
    const Slot* pair = &slots_[(hash & (kSlots / 2 - 1)) * 2];
    if (pair[0].holds(key, size)) return pair;
    if (pair[1].holds(key, size)) return pair + 1;
    return nullptr;
  }
  void insert(Key key, std::size_t size, std::uint64_t hash, std::span<const TokenId> ids) {
    Slot* pair = &slots_[(hash & (kSlots / 2 - 1)) * 2];
    pair[1] = pair[0];
    pair[0] = Slot{key.low, key.high, {}, static_cast<std::uint8_t>(size), static_cast<std::uint8_t>(ids.size())};
    std::copy(ids.begin(), ids.end(), pair[0].ids);
  }

  static std::uint64_t hash_long(std::string_view piece);
  // Returns an empty span when the piece is not in the cache.
  std::span<const TokenId> find_long(std::string_view piece, std::uint64_t hash) const;
  void insert_long(std::string_view piece, std::uint64_t hash, std::span<const TokenId> ids);

 private:
  static constexpr std::size_t kSlots = 1 << 15, kLongSlots = 1 << 14;
  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, ids = 0;
    std::uint16_t size = 0, count = 0;  // size 0: empty
  };

  std::vector<Slot> slots_;
  std::vector<Entry> table_;
  std::size_t used_ = 0;
  std::string texts_;
  std::vector<TokenId> ids_;
};

}  // namespace molen::data
