// Who sends what to whom in our own collectives over point-to-point messages: functions of the counts alone, without
// MPI, so that worlds larger than the machine are tested. `mpi_communicator.cpp` carries them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace molen::comm::mpi {

// Consecutive elements of the gathered buffer.
struct Run {
  std::int64_t first = 0, count = 0;
};

// All-gather around a ring: each rank receives from rank - 1 and sends to rank + 1, both in the order given, so what is
// sent to a rank is what it expects. The first `own` runs of `out` lie there from the start; out[own + k] is in[k], and
// goes on once it has arrived. Each rank sends every block but that of the rank to its right: (n-1)/n of the whole
// where blocks are equal. With one block that is not empty it is a broadcast: all send the whole but the last.
struct Ring {
  std::vector<Run> out, in;
  std::size_t own = 0;
};
// Runs are at most `longest` elements, so that a block is passed on while its rest still arrives.
Ring ring_of(std::span<const std::int64_t> counts, int rank, std::int64_t longest);

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
