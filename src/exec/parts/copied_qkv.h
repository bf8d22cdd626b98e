// The weights of q|k|v on a rank that holds all key and value heads.
#pragma once

#include "exec/parts/part.h"

namespace molen::exec {

// Copies the rows that the rank's heads use into one matrix, and spreads gradients back to the rows that they belong
// to.
class CopiedQkv {
 public:
  CopiedQkv(const arch::Architecture& all, const PartContext& common, UnitWeights weights)
      : weights_(std::move(weights)),
        heads_(arch::kv_heads_of(all, common.share.rank, common.share.ranks)),
        rows_(common.arch.qkv_size()),
        head_dim_(common.arch.head_dim) {}

  // Copies the weights into one matrix in the op's scratch.
  model::Linear assemble(math::Scratch& scratch) const;
  // Returns scratch for gradients that are overwritten. The norm's gradients are those of the unit itself, and may be
  // added to.
  model::Linear fresh(math::Scratch& scratch, bool adds) const;
  // Treats these weights as gradients, and writes or adds the gradients in `all` to them. The key and value heads of
  // other ranks get zero. Returns the bytes that it read and wrote, without those zeros.
  std::int64_t spread(const model::Linear& all, bool accumulate) const;
  static std::int64_t bytes_of(const model::Linear& all);

 private:
  model::Linear empty(math::Scratch& scratch) const;
  // Calls f(part of `all`, source rows of that part) for each part in order.
  template <class F>
  void each(F&& f, const model::Linear& all) const;

  UnitWeights weights_;
  std::vector<std::int64_t> heads_;
  std::int64_t rows_, head_dim_;
};

}  // namespace molen::exec
