// The traits of a program: the choices of a layout that its ops, buffers and grid show. The operands of ops, the sizes
// of values and the sums over ranks depend on them. The builder derives the traits from the setting that it was asked
// for (values/of_setting.h). The verifier derives them from the program itself (verify/inferred.h).
#pragma once

#include <cstdint>

#include "program/ir/program.h"

namespace molen::program {

struct Traits {
  Grid grid;
  Purpose purpose = Purpose::kTrain;
  Rows rows;                       // of a micro-batch
  std::int64_t tile = 0;           // rows of a chunk of the head
  std::int64_t positions = 0;      // of the global batch
  std::int64_t micro_batches = 0;  // number on a rank
  bool parameters_cut = false;     // parameters outlive a step in parts, cut over the axes of grid.shard
  bool halves = false;             // backwards run in halves, so residual gradients are kept
  bool in_a_ring = false;          // context ranks, if there are several, pass keys around a ring
  bool documents = false;          // attention stays within documents
  bool scaled = false;             // the loss is scaled
  Offload offload;
  DType compute = DType::kF32;
  DType master = DType::kF32;   // of the weights that the optimizer updates
  DType message = DType::kF32;  // of gradients between data-parallel ranks
  Placement placement = Placement::kInterleaved;
  bool operator==(const Traits&) const = default;

  int ranks(mesh::Axis axis) const { return grid.sizes[axis]; }
  bool trains() const { return purpose == Purpose::kTrain; }
  // As in Setting.
  int shards() const { return grid.along(mesh::kShards); }
  int replicas() const { return ranks(mesh::Axis::kDpReplicate); }
  int replica_group_size() const { return shards() * replicas(); }
  int context_ranks() const { return ranks(mesh::Axis::kCp); }
  bool context() const { return context_ranks() > 1; }
  bool ring() const { return context() && in_a_ring; }
  int expert_ranks() const { return ranks(mesh::Axis::kEp); }
  bool shares_experts() const { return expert_ranks() > 1; }
  int stages() const { return ranks(mesh::Axis::kPp); }
  bool pipelined() const { return stages() > 1; }
  bool tensor() const { return ranks(mesh::Axis::kTp) > 1; }
  bool sharded_rows() const { return tensor() && rows.sharded; }
  // The next functions say which parts of a unit's state a rank keeps. Optimizer states are cut over grid.own,
  // gradients over grid.shard.
  bool owns_part() const { return grid.along(grid.own) > 1; }
  bool sharded_gradients() const { return grid.along(grid.shard) > 1; }
  bool sharded_parameters() const { return sharded_gradients() && parameters_cut; }
  // Whether optimizer states are cut more finely than sharded gradients: over the replicas too.
  bool owns_part_of_shard() const { return sharded_gradients() && !(grid.own == grid.shard); }
  bool reduces_each_micro_batch() const { return sharded_gradients() || offload.gradients; }
  bool materializes_parameters() const { return sharded_parameters() || offload.parameters; }
  bool narrow_over(Axis axis) const {
    const Axis of = without_experts(axis);
    return size_of(message) < 4 && (of == Axis::kDp || of == Axis::kShard || of == Axis::kReplicate);
  }
  std::int64_t tokens() const { return rows.count(); }
  std::int64_t head_chunks() const { return tile > 0 ? (tokens() + tile - 1) / tile : 0; }
  std::int64_t head_chunk_tokens(std::int64_t chunk) const { return std::min(tile, tokens() - chunk * tile); }
};

}  // namespace molen::program
