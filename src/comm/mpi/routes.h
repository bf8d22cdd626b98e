// Who sends what to whom in our own collectives over point-to-point messages: functions of the counts alone, without
// MPI, so that worlds larger than the machine are tested. `mpi_communicator.cpp` carries them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace molen::comm::mpi {

// Consecutive elements of the gathered buffer, and the rank they go to or come from.
struct Piece {
  std::int64_t first = 0, count = 0;
  int peer = 0;
};

// What one rank sends and receives, each in the order given; no piece is empty. The first `ready` pieces of `out` lie
// there from the start; out[ready + k] is in[k] passed on, and goes once that has arrived.
struct Route {
  std::vector<Piece> out, in;
  std::size_t ready = 0;
};

// All-gather around a ring: from rank - 1 and to rank + 1. Each rank sends every block but that of the rank to its
// right: (n-1)/n of the whole where blocks are equal. With one block that is not empty it is a broadcast: all send the
// whole but the last. Pieces are at most `longest` elements, so that a block is passed on while its rest still arrives.
Route ring_of(std::span<const std::int64_t> counts, int rank, std::int64_t longest);

// All-gather in which nobody waits for another's message to pass it on: each rank sends its block to all others, rank +
// 1 first. As many bytes as the ring.
Route pairs_of(std::span<const std::int64_t> counts, int rank);

// All-gather in ceil(log2 n) rounds (Bruck et al., "Efficient algorithms for all-to-all communications in multiport
// message-passing systems", 1997): for blocks that are short against a message's latency. The buffer is rotated: it
// begins with this rank's block, rank + 1's follows, and so on around. Each round sends its first `out` elements, and
// receives `in` elements behind those it has. The bytes are the ring's, in sum over all ranks.
struct Round {
  int to = 0, from = 0;
  std::int64_t out = 0, in = 0;
};
std::vector<Round> rounds_of(std::span<const std::int64_t> counts, int rank);

// A short broadcast: receive from `parent` (-1 at the root), then send to the children, the largest subtree first.
struct Tree {
  int parent = -1;
  std::vector<int> children;
};
Tree tree_of(int ranks, int rank, int root);

}  // namespace molen::comm::mpi
