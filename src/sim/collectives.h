// The algorithms of a collective, and how long each takes.
//
// In a ring, each rank passes parts of the buffer to its neighbour (Thakur, Rabenseifner, Gropp 2005, section 3). NCCL
// has a tree for all-reduces as well, of logarithmic depth between nodes (NCCL, src/graph/tuning.cc). A hierarchical
// collective goes by levels: within each node, every rank takes a share of the buffer; the ranks of all nodes that have
// the same share then form a group of their own; an all-reduce ends by gathering the shares within each node. So the
// links between nodes carry each share once (Cho et al. 2019, "BlueConnect", MLSys; Horovod's hierarchical all-reduce;
// Singh et al., arXiv 2504.18658, which also gathers and scatters so). The double trees of NCCL, which have a channel
// for each network adapter, divide an all-reduce in this way. For all-gathers and reduce-scatters of several ranks in
// each node, NCCL and RCCL have rings alone (arXiv 2504.18658, section 3).
#pragma once

#include <optional>
#include <span>
#include <string>

namespace molen::sim {

enum class Algorithm { kRing, kTree, kHierarchical };

// The ranks of a collective and their links. Rates are those of one rank in one direction while all ranks send, in
// bytes/s; times are in s.
struct CollectiveRanks {
  int ranks = 1, in_node = 1;          // in all; in each node
  double inside = 0.0, between = 0.0;  // rates within a node and between nodes; both above 0
  double near_s = 0.0, far_s = 0.0;    // latency of a message within a node and between nodes
  double start_s = 0.0;                // until a collective begins; each level of a hierarchical one is a collective
  double nodes() const;                // the last one may have fewer ranks
};

// Returns the seconds of a collective ("all_reduce", "reduce_scatter", "all_gather", ...) of a buffer of `bytes` among
// at least two ranks, or nothing where the algorithm has no such collective: a tree reduces to all ranks alone, and
// levels need several nodes with the same number of ranks, which is above 1.
std::optional<double> seconds_of(Algorithm algorithm, const std::string& kind, double bytes,
                                 const CollectiveRanks& ranks);
// Returns the least of these over algorithms, of which one must have the collective.
double fastest_of(std::span<const Algorithm> algorithms, const std::string& kind, double bytes,
                  const CollectiveRanks& ranks);

}  // namespace molen::sim
