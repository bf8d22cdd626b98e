#include "data/tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace molen::data {

std::uint64_t WordCache::hash_long(std::string_view piece) {
  return XXH3_64bits(piece.data(), piece.size());
}

std::span<const TokenId> WordCache::find_long(std::string_view piece, std::uint64_t hash) const {
  for (std::size_t i = hash & (kLongSlots - 1);; i = (i + 1) & (kLongSlots - 1)) {
    const Entry& entry = table_[i];
    if (entry.size == 0) return {};
    if (entry.hash == hash && entry.size == piece.size() &&
        std::memcmp(texts_.data() + entry.text, piece.data(), piece.size()) == 0)
      return {ids_.data() + entry.ids, entry.count};
  }
}

void WordCache::insert_long(std::string_view piece, std::uint64_t hash, std::span<const TokenId> ids) {
  if ((used_ + 1) * 4 > kLongSlots * 3) {
    std::fill(table_.begin(), table_.end(), Entry{});
    texts_.clear();
    ids_.clear();
    used_ = 0;
  }
  std::size_t i = hash & (kLongSlots - 1);
  while (table_[i].size != 0) i = (i + 1) & (kLongSlots - 1);
  table_[i] = {hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(ids_.size()),
               static_cast<std::uint16_t>(piece.size()), static_cast<std::uint16_t>(ids.size())};
  texts_.append(piece);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

}  // namespace molen::data
