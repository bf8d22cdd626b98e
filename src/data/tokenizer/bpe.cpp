#include "data/tokenizer/bpe.h"

#include <algorithm>

#include "base/error.h"

namespace molen::data {
namespace {

constexpr std::size_t kShort = 48;

void merge_short(const MergeTable& merges, const std::array<TokenId, 256>& byte_ids, std::string_view piece,
                 std::vector<TokenId>& out) {
  TokenId ids[kShort];
  MergeTable::Merge with_next[kShort];  // of ids[i] and ids[i + 1]
  std::size_t n = piece.size();
  for (std::size_t i = 0; i < n; ++i) ids[i] = byte_ids[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < n; ++i) with_next[i] = merges.find(ids[i], ids[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (with_next[i].rank < with_next[best].rank) best = i;
    if (with_next[best].rank == MergeTable::kNoRank) break;
    ids[best] = with_next[best].result;
    for (std::size_t i = best + 1; i + 1 < n; ++i) ids[i] = ids[i + 1];
    for (std::size_t i = best + 1; i + 2 < n; ++i) with_next[i] = with_next[i + 1];
    --n;
    if (best + 1 < n) with_next[best] = merges.find(ids[best], ids[best + 1]);
    if (best > 0) with_next[best - 1] = merges.find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + n);
}

void merge_long(const MergeTable& merges, const std::array<TokenId, 256>& byte_ids, std::string_view piece,
                MergeScratch& scratch, std::vector<TokenId>& out) {
  MOLEN_CHECK(piece.size() < (std::size_t{1} << 31), "a piece of {} bytes", piece.size());
  using Candidate = MergeScratch::Candidate;
  const auto later = [](const Candidate& a, const Candidate& b) { return a.order > b.order; };
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  const auto n = static_cast<std::int32_t>(piece.size());
  nodes.resize(piece.size());
  heap.clear();
  const auto candidate = [&](std::int32_t at) -> Candidate {
    const TokenId left = nodes[at].id, right = nodes[nodes[at].next].id;
    const MergeTable::Merge merge = merges.find(left, right);
    return {static_cast<std::uint64_t>(merge.rank) << 32 | static_cast<std::uint32_t>(at), left, right, merge.result};
  };
  const auto exists = [](const Candidate& c) { return c.order >> 32 != MergeTable::kNoRank; };
  for (std::int32_t i = 0; i < n; ++i)
    nodes[i] = {byte_ids[static_cast<unsigned char>(piece[i])], i - 1, i + 1 < n ? i + 1 : -1};
  for (std::int32_t i = 0; i + 1 < n; ++i)
    if (const Candidate c = candidate(i); exists(c)) heap.push_back(c);
  std::make_heap(heap.begin(), heap.end(), later);
  constexpr TokenId kDead = ~TokenId{0};
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::int32_t>(top.order & 0xffffffff);
    const std::int32_t gone = nodes[at].next;
    // The candidate is out of date: one of its two tokens has since merged with another.
    if (nodes[at].id != top.left || gone < 0 || nodes[gone].id != top.right) continue;
    nodes[at].id = top.result;
    nodes[at].next = nodes[gone].next;
    nodes[gone].id = kDead;
    if (nodes[at].next >= 0) nodes[nodes[at].next].previous = at;
    for (const std::int32_t left : {nodes[at].previous, at}) {
      if (left < 0 || nodes[left].next < 0) continue;
      const Candidate c = candidate(left);
      if (!exists(c)) continue;
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (std::int32_t i = 0; i >= 0; i = nodes[i].next) out.push_back(nodes[i].id);
}

}  // namespace

bool MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  if ((used_ + 1) * 2 > slots_.size()) rehash(slots_.size() * 2);
  const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | right;
  std::size_t i = slot(key);
  for (; slots_[i].key != kEmpty; i = (i + 1) & mask_)
    if (slots_[i].key == key) return false;
  slots_[i] = {key, merge};
  ++used_;
  return true;
}

void MergeTable::rehash(std::size_t capacity) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(capacity, Slot{});
  mask_ = capacity - 1;
  shift_ = 64 - std::countr_zero(capacity);
  for (const Slot& s : old) {
    if (s.key == kEmpty) continue;
    std::size_t i = slot(s.key);
    while (slots_[i].key != kEmpty) i = (i + 1) & mask_;
    slots_[i] = s;
  }
}

void merge_piece(const MergeTable& merges, const std::array<TokenId, 256>& byte_ids, std::string_view piece,
                 MergeScratch& scratch, std::vector<TokenId>& out) {
  if (piece.empty()) return;
  if (piece.size() <= kShort) return merge_short(merges, byte_ids, piece, out);
  merge_long(merges, byte_ids, piece, scratch, out);
}

}  // namespace molen::data
