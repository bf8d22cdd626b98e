// Merges the byte pairs of one piece: the pair of lowest rank first, and the leftmost of equal ones.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace molen::data {

using TokenId = std::uint32_t;

// Hash table with open addressing: (left, right) -> rank and merged token.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNoRank;
    TokenId result = 0;
  };
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

  MergeTable() { rehash(16); }
  void reserve(std::size_t merges) { rehash(std::bit_ceil(merges * 2 + 16)); }
  // Returns false if the pair is already in the table.
  bool insert(TokenId left, TokenId right, Merge merge);
  // Returns a merge with rank == kNoRank when the pair is not in the table.
  Merge find(TokenId left, TokenId right) const {
    const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | right;
    for (std::size_t i = slot(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  std::size_t slot(std::uint64_t key) const {
    key ^= key >> 29;
    return (key * 0x9e3779b97f4a7c15ull) >> shift_;
  }
  void rehash(std::size_t capacity);

  std::vector<Slot> slots_;
  std::size_t mask_ = 0, used_ = 0;
  int shift_ = 0;
};

struct MergeScratch {
  struct Node {
    TokenId id;
    std::int32_t previous, next;
  };
  struct Candidate {
    std::uint64_t order;  // rank << 32 | position: the smallest first
    TokenId left, right, result;
  };
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
};

// Appends the tokens of `piece` to `out`. Quadratic for short pieces, n log n for long ones. piece.size() < 2^31.
void merge_piece(const MergeTable& merges, const std::array<TokenId, 256>& byte_ids, std::string_view piece,
                 MergeScratch& scratch, std::vector<TokenId>& out);

}  // namespace molen::data
