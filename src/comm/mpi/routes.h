// Message schedules of our own collectives over point-to-point messages. They are functions of the counts alone,
// without MPI, so that tests cover worlds larger than the machine. `mpi_communicator.cpp` carries them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace molen::comm::mpi {

// Consecutive elements of the gathered buffer, and the peer rank that sends or receives them.
struct Piece {
  std::int64_t first = 0, count = 0;
  int peer = 0;
};

// The pieces that one rank sends and receives, in order; no piece is empty. The rank holds the first `ready` pieces of
// `out` from the start. out[ready + k] forwards in[k] and is sent once in[k] has arrived.
struct Route {
  std::vector<Piece> out, in;
  std::size_t ready = 0;
};

// Returns the route of an all-gather around a ring: the rank receives from rank - 1 and sends to rank + 1. Each rank
// sends every block except that of the rank to its right: (n-1)/n of the whole when blocks are equal. With a single
// non-empty block it is a broadcast: every rank except the last sends the whole. Pieces are at most `longest` elements,
// so that a rank forwards the start of a block while the rest still arrives.
Route ring_of(std::span<const std::int64_t> counts, int rank, std::int64_t longest);

// Returns the route of an all-gather without forwarding: each rank sends its block to all other ranks, rank + 1 first.
// It moves as many bytes as the ring.
Route pairs_of(std::span<const std::int64_t> counts, int rank);

// All-gather in ceil(log2 n) rounds (Bruck et al., "Efficient algorithms for all-to-all communications in multiport
// message-passing systems", 1997), for blocks that are short compared with a message's latency. The buffer is rotated:
// it begins with this rank's block, followed by rank + 1's, and so on around. Each round sends the first `out` elements
// of the buffer and appends `in` received elements. Summed over all ranks, it moves as many bytes as the ring.
struct Round {
  int to = 0, from = 0;
  std::int64_t out = 0, in = 0;
};
std::vector<Round> rounds_of(std::span<const std::int64_t> counts, int rank);

// A short broadcast: a rank receives from `parent` (-1 at the root), then sends to its children, the one with the
// largest subtree first.
struct Tree {
  int parent = -1;
  std::vector<int> children;
};
Tree tree_of(int ranks, int rank, int root);

}  // namespace molen::comm::mpi
