#include "comm/mpi/routes.h"

#include <algorithm>

#include "comm/reduce.h"

namespace molen::comm::mpi {

Route ring_of(std::span<const std::int64_t> counts, int rank, std::int64_t longest) {
  const int n = static_cast<int>(counts.size());
  Route ring;
  const auto add = [&](std::vector<Piece>& pieces, int block, int peer) {
    const std::int64_t first = offset_of(counts, block), count = counts[static_cast<std::size_t>(block)];
    for (std::int64_t at = 0; at < count; at += longest)
      pieces.push_back({first + at, std::min(longest, count - at), peer});
  };
  for (int back = 0; back < n; ++back) {
    const int block = (rank - back + n) % n;
    if (back < n - 1) add(ring.out, block, (rank + 1) % n);
    if (back == 0) ring.ready = ring.out.size();
    if (back > 0) add(ring.in, block, (rank - 1 + n) % n);
  }
  return ring;
}

Route pairs_of(std::span<const std::int64_t> counts, int rank) {
  const int n = static_cast<int>(counts.size());
  Route pairs;
  const auto add = [&](std::vector<Piece>& pieces, int block, int peer) {
    if (const std::int64_t count = counts[static_cast<std::size_t>(block)]; count > 0)
      pieces.push_back({offset_of(counts, block), count, peer});
  };
  for (int shift = 1; shift < n; ++shift) {
    const int from = (rank - shift + n) % n;
    add(pairs.out, rank, (rank + shift) % n);
    add(pairs.in, from, from);
  }
  pairs.ready = pairs.out.size();
  return pairs;
}

std::vector<Round> rounds_of(std::span<const std::int64_t> counts, int rank) {
  const int n = static_cast<int>(counts.size());
  const auto sum = [&](int first, int blocks) {
    std::int64_t total = 0;
    for (int b = 0; b < blocks; ++b) total += counts[static_cast<std::size_t>((first + b) % n)];
    return total;
  };
  std::vector<Round> rounds;
  for (int have = 1; have < n; have *= 2) {
    const int blocks = std::min(have, n - have), from = (rank + have) % n;
    rounds.push_back({(rank - have + n) % n, from, sum(rank, blocks), sum(from, blocks)});
  }
  return rounds;
}

Tree tree_of(int ranks, int rank, int root) {
  const int place = (rank - root + ranks) % ranks;  // the root is at 0
  Tree tree;
  int bit = 1;
  for (; bit < ranks && (place & bit) == 0; bit *= 2) {
  }
  if (place > 0) tree.parent = (place - bit + root) % ranks;
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < ranks) tree.children.push_back((place + bit + root) % ranks);
  return tree;
}

}  // namespace molen::comm::mpi
