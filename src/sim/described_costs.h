// The cost of a program's ops on the devices of a cluster's description, which nobody needs to have measured.
//
// A matrix product takes its FLOPs over the device's rate for its shape: the tiles of the result fill the device in
// whole waves (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization), and each tile has
// terms that its pipeline needs to fill. An op that only moves memory takes its bytes over the bandwidth. A collective
// takes the time of the fastest algorithm that its library has (collectives.h), over the tiers of links that its group
// spans.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.h"
#include "program/parts/sizes.h"
#include "sim/collectives.h"
#include "sim/costs.h"
#include "sim/factors.h"

namespace molen::sim {

// How a training program computes and communicates what a step program says, where that differs from molen.
struct Framework {
  bool flash_attention = true;  // false: the scores of attention are written to memory and read again
  bool fp8 = false;             // the products of linear layers are in fp8; those of the output layer are not
  bool compiled = false;        // element-wise ops are fused by a compiler
  // Whether a stage computes while it sends. If not, compute stands still as long as the message moves.
  bool messages_beside_compute = true;
  bool reduces_last = false, gathers_in_forward = false;  // as in Costs
  // Whether each matrix of sharded parameters is gathered, and its gradient scattered, by a collective of its own,
  // which copies the piece of each rank by a kernel of its own between the matrix and the buffer of the collective. If
  // not, a unit is one collective, without copies. DeepSpeed's ZeRO-3 began so (github.com/microsoft/DeepSpeed, pull
  // request 1188); its vectors of fewer than 1e5 elements stay on each rank.
  bool gathers_matrices = false;
  // Whether the pieces of a tensor-parallel product fill the device together (parallel.tensor_chunks); if not, each
  // piece is a product of its own.
  bool pieces_at_once = false;
  // Whether the logits of a micro-batch are written to memory, and the loss is made of kernels that read them again. If
  // not, they stay in the op of the head.
  bool whole_logits = false;
  // Whether a layer that is computed again is computed as a whole, as PyTorch's checkpoint runs all of its forward. If
  // not, the layer ends with the last value that its backward reads, so its last product and the exchange of that are
  // not made again, as in molen's programs (program/build/recompute.h).
  bool whole_layers_again = false;
  // Whether all collectives of a rank take turns, as molen's do over NCCL.
  bool one_at_a_time = true;
  // Whether the time between two steps counts: loading, logging, ranks that are late (the factor "outside"). The factor
  // was fitted to steps that frameworks reported.
  bool between_steps = false;
  // The algorithms that its communication library has for all-reduces, and for all-gathers, reduce-scatters and other
  // collectives. Those of NCCL and RCCL are here (collectives.h); the fastest is taken.
  std::vector<Algorithm> all_reduces{Algorithm::kRing, Algorithm::kTree, Algorithm::kHierarchical};
  std::vector<Algorithm> other_collectives{Algorithm::kRing};
};

class DescribedCosts : public Costs {
 public:
  DescribedCosts(cluster::Cluster cluster, Factors factors, Framework framework = {});

  double seconds(const program::Program& program, const program::Step& step) const override;
  std::vector<double> epilogue_seconds(const program::Step& step) const override;
  const CoreContention& core_contention() const override { return sharing_; }
  Interference interference() const override;
  bool reduces_last() const override { return framework_.reduces_last; }
  bool gathers_in_forward() const override { return framework_.gathers_in_forward; }
  double between_steps() const override { return framework_.between_steps ? factors_.of("outside") : 0.0; }

  // Returns the seconds of one product [rows, terms] x [terms, columns] of elements of `bytes` bytes, once for each
  // group. A framework with fp8 computes the products of linear layers in it.
  double product_seconds(const program::parts::MatrixProduct& product, int bytes, bool linear_layer) const;
  // Returns FLOP/s that no product and no attention exceeds.
  double fastest_rate(int bytes) const;
  // Returns the seconds in which a kernel moves bytes of the device's memory.
  double memory_seconds(double bytes) const;
  // Returns the seconds in which an op of the host, or a copy, moves bytes of the host's memory.
  double host_seconds(const program::Program& program, const program::Step& step, double bytes) const;
  // Returns the seconds of a collective ("all_reduce", ...) of `bytes` in a group of `ranks`, of which each node has
  // `in_node`. `distance` is the number of devices between neighbours of the group.
  struct Group {
    int ranks = 1, in_node = 1, distance = 1;
  };
  double collective_seconds(const std::string& kind, double bytes, const Group& group) const;
  // Returns the group of ranks that an axis of the program joins, on nodes of this cluster.
  Group group_of(const program::Program& program, program::Axis axis) const;

  const cluster::Cluster& cluster() const { return cluster_; }
  const Framework& framework() const { return framework_; }

 private:
  double part_seconds(const program::Program& program, const program::Step& step) const;
  bool ends_layer_again(const program::Program& program, const program::Compute& op) const;
  double attention_seconds(const program::Program& program, const program::Step& step) const;
  double written_attention_seconds(const program::Step& step, std::int64_t head_dim) const;
  double communication_seconds(const program::Program& program, const program::Step& step) const;
  // Returns what a collective of `bytes` of a unit takes longer where each matrix has one of its own.
  double more_by_matrices(const program::Program& program, const program::Step& step, double bytes,
                          const Group& group) const;
  // Returns the links that a message to a neighbour takes.
  const cluster::Tier& tier_of_message(const program::Program& program, const program::Step& step,
                                       const Group& group) const;
  double peak(int bytes) const;
  double bandwidth_within(const Group& group) const;
  CollectiveRanks links_of(const Group& group) const;
  double efficiency_of(const program::parts::MatrixProduct& product) const;

  cluster::Cluster cluster_;
  Factors factors_;
  Framework framework_;
  CoreContention sharing_;
};

}  // namespace molen::sim
