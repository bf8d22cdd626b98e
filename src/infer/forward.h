// The forward of a model on one process: the ops that a step program has for an evaluation, up to the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/arena.h"
#include "exec/bind.h"
#include "infer/weights.h"
#include "program/memory/memory.h"

namespace molen::infer {

// The forward on B sequences of S tokens, N = B*S. The program's declarations say which ops there are, so inference
// computes a new part of a model without code of its own.
class Forward {
 public:
  // `weights` must outlive the object.
  Forward(const Weights& weights, std::int64_t batch, std::int64_t sequence, int threads);

  // Called before the attention of each layer with the layer, q|k|v_N(h+2k)D and the place of its result o_NhD. Returns
  // whether it has computed the result; otherwise the op of the program computes it.
  using Attention = std::function<bool(std::int64_t layer, const at::Tensor& qkv, at::Tensor& out)>;

  // Runs the forward on tokens that stand at [first_position, first_position + S) of their sequences. Returns what the
  // head multiplies, y_Nd, which the next call overwrites. Throws UsageError past the last learned position.
  const at::Tensor& operator()(std::span<const std::int32_t> ids, std::int64_t first_position,
                               const Attention& attention);

 private:
  struct BoundOp {
    exec::Kernel kernel;
    void* scratch;
    std::int64_t scratch_bytes;
    std::int64_t layer = -1;  // of an attention, which has the following two operands
    at::Tensor qkv = {}, out = {};
  };
  exec::BindContext context() const;
  BoundOp bind(int body, int op) const;
  // Fills the tables and binds the ops that depend on where the tokens stand in their sequences.
  void move_to(std::int64_t first_position);
  at::Tensor flat(int buffer) const;
  at::Tensor of_batch(program::Value value) const;

  const Weights& weights_;
  program::Program program_;
  program::MemoryPlan plan_;
  program::Slots slots_;
  exec::Arena arena_;
  std::vector<at::Tensor> weights_of_;          // by buffer; undefined for a buffer in the arena
  std::vector<std::pair<int, int>> embedding_;  // body and op of each op before the layers
  std::vector<BoundOp> embed_, layers_;         // the ops before the layers, and the others
  at::Tensor ids_N_, y_Nd_;
  std::int64_t first_position_ = -1;
};

}  // namespace molen::infer
