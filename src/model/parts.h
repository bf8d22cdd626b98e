// The parts of a layer (arch/parts.h) on tensors, which the executor calls for compute ops. Nothing here allocates:
// results and saved tensors are views into the plan's arena, and workspace comes from Context::scratch. When kernels
// call ATen, the guard of math/allocation.h also takes ATen's allocations from there. Products run with
// at::get_num_threads() threads, everything else with PartShape::threads.
//
// Dtypes: activations and weights have the compute dtype (fp64, fp32, bf16, fp16); lse, rstd and mean are fp32 (fp64 in
// fp64); weight gradients `d_*` of parameters have the main-gradient dtype (fp32; fp64 in fp64). Biases and norm
// weights that a model lacks are undefined tensors. Suffixes of names give shapes in the letters of arch/parts.h. Rule
// of accumulation: a backward *adds* to parameter gradients when `accumulate` is set; otherwise it overwrites the
// gradients of norms, matrices and biases, and zeroes that of the embedding table first. Activation gradients are
// overwritten, except the residual d_x, which is added to.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "arch/parts.h"
#include "base/position_run.h"
#include "math/scratch.h"

namespace molen::model {

// This rank's share of a part that tensor ranks split; by default, the whole part. When ranks leave partial sums, terms
// that count once (residual, biases of row-split products) are added only to the rank's rows.
struct TensorSlice {
  int rank = 0, ranks = 1;
  std::int64_t first_row = 0, rows = -1;                  // rows of the N tokens; rows -1: all
  std::int64_t vocabulary_first = 0, vocabulary_all = 0;  // the table's first row, and the rows of the whole table
  bool residual_rows = false;  // the residual gradient is kept elsewhere, by rows: d_x is overwritten
  std::int64_t count_rows(std::int64_t all) const { return rows < 0 ? all : rows; }
};

struct Context {
  const arch::Architecture& arch;
  arch::PartShape shape;  // B, S, compute dtype, kernels, threads
  math::Scratch& scratch;
  bool accumulate = true;  // see above; backward only
  TensorSlice share = {};
  // Backward only: kBackward, or one of its halves. program::has_halves tells which parts have two, and arch/parts.h
  // says what each half reads. A half does not touch the operands that only the other half takes, and these may be
  // undefined. kBackwardInput runs a part without halves whole; kBackwardWeights throws Error for such a part.
  arch::Pass pass = arch::Pass::kBackward;
  bool of_input() const { return pass != arch::Pass::kBackwardWeights; }
  bool of_weights() const { return pass != arch::Pass::kBackwardInput; }
  // When context ranks share each sequence (model/context.h), the shape.sequence positions of this rank's rows. When
  // empty, the positions are 0 to S-1. RoPE's tables have a row for each position.
  std::span<const PositionRun> positions = {};
  // For each row, the position where its document begins (int32 [N]); attention stays within the document. When null,
  // each sequence is one document.
  const at::Tensor* document_start = nullptr;
  // ALiBi's slopes of this rank's heads (f64 [h], on the device of the operands); null without ALiBi.
  const at::Tensor* slopes = nullptr;
};

struct Linear {
  at::Tensor weight_OI;  // [out, in]; q|k|v and gate|up as one contiguous matrix
  at::Tensor bias_O;     // undefined: none
};
struct NormWeights {
  at::Tensor weight_d, bias_d;  // undefined: none
};
struct QkNormWeights {
  at::Tensor query, key;  // [D] each, or of all heads: [h D] and [k D]
};
struct NormSaved {
  at::Tensor rstd_N, mean_N;  // mean undefined for RMSNorm
};

// RoPE's cos and sin for positions 0..S-1 (fp32; fp64 in fp64), with shape [S, D/2], on `device`; undefined without
// RoPE. A context rank's table has the rank's own positions (model/context.h).
struct RopeTable {
  at::Tensor cos_SD2, sin_SD2;
};
RopeTable make_rope_table(const arch::Architecture& arch, std::int64_t sequence, at::ScalarType dtype,
                          at::Device device);
// Returns ALiBi's slopes of the heads of one of `ranks` tensor ranks (f64 [h of the rank]), on the host. `arch` is the
// architecture of the whole model.
at::Tensor make_slopes(const arch::Architecture& arch, int rank = 0, int ranks = 1);

// Ids in another rank's part of the table add nothing. ids_N is int32. positions_Sd has the learned positions; it is
// undefined for RoPE and ALiBi.
void embed_forward(const Context&, const at::Tensor& ids_N, const at::Tensor& table_Vd, const at::Tensor& positions_Sd,
                   at::Tensor& x_Nd);
void embed_backward(const Context&, const at::Tensor& ids_N, const at::Tensor& d_x_Nd, at::Tensor& d_table_Vd,
                    at::Tensor& d_positions_Sd);

void norm_qkv_forward(const Context&, const at::Tensor& x_Nd, const NormWeights&, const Linear& qkv, NormSaved&,
                      at::Tensor& qkv_NQ);
void norm_qkv_backward(const Context&, const at::Tensor& d_qkv_NQ, const at::Tensor& x_Nd, const NormSaved&,
                       const NormWeights&, const Linear& qkv, at::Tensor& d_x_Nd, NormWeights& d_norm, Linear& d_qkv);

// The norms of the queries and keys of q|k|v, over each head or over all of them (arch::QkNorm); the values are copied.
// The backward replaces the gradient of the forward's output by the gradient of its input, in place.
void qk_norm_forward(const Context&, const at::Tensor& projected_NQ, const QkNormWeights&, at::Tensor& normed_NQ);
void qk_norm_backward(const Context&, const at::Tensor& projected_NQ, const QkNormWeights&, at::Tensor& d_qkv_NQ,
                      QkNormWeights& d_norms);

// Turns queries and keys by the angles of their positions, in place; `back`: turns their gradients back. The table has
// a row for each position of a sequence, or for each position that a context rank has.
void rotate(const Context&, const RopeTable&, bool back, at::Tensor& qkv_NQ);

void attention_forward(const Context&, const at::Tensor& qkv_NQ, at::Tensor& o_NhD, at::Tensor& lse_BhS);
void attention_backward(const Context&, const at::Tensor& d_o_NhD, const at::Tensor& qkv_NQ, const at::Tensor& o_NhD,
                        const at::Tensor& lse_BhS, at::Tensor& d_qkv_NQ);

// The residual (x, mid) has only the R rows of Share. In a split backward, kWeights needs d_x as kInput read it, before
// later parts of the backward add to it. The same holds for down_backward.
void output_projection_forward(const Context&, const at::Tensor& o_NhD, const at::Tensor& x_Rd, const Linear& output,
                               at::Tensor& mid_Nd);
void output_projection_backward(const Context&, const at::Tensor& d_x_Nd, const at::Tensor& o_NhD, const Linear& output,
                                at::Tensor& d_o_NhD, Linear& d_output);

void norm_up_forward(const Context&, const at::Tensor& mid_Nd, const NormWeights&, const Linear& up, NormSaved&,
                     at::Tensor& up_NU);
void norm_up_backward(const Context&, const at::Tensor& d_up_NU, const at::Tensor& mid_Nd, const NormSaved&,
                      const NormWeights&, const Linear& up, at::Tensor& d_x_Nd, NormWeights& d_norm, Linear& d_up);

void activation_forward(const Context&, const at::Tensor& up_NU, at::Tensor& a_Nf);
void activation_backward(const Context&, const at::Tensor& d_a_Nf, const at::Tensor& up_NU, at::Tensor& d_up_NU);

void down_forward(const Context&, const at::Tensor& a_Nf, const at::Tensor& mid_Rd, const Linear& down,
                  at::Tensor& y_Nd);
void down_backward(const Context&, const at::Tensor& d_x_Nd, const at::Tensor& a_Nf, const Linear& down,
                   at::Tensor& d_a_Nf, Linear& d_down);

void final_norm_forward(const Context&, const at::Tensor& x_Nd, const NormWeights&, NormSaved&, at::Tensor& y_Nd);
// Overwrites d_x, because it is the first writer of the residual gradient.
void final_norm_backward(const Context&, const at::Tensor& d_y_Nd, const at::Tensor& x_Nd, const NormSaved&,
                         const NormWeights&, at::Tensor& d_x_Nd, NormWeights& d_norm);

// Computes one chunk of C = y.size(0) tokens. labels_C is int32, and a label of -1 is ignored. `losses_C` receives each
// token's loss in fp32 (fp64 in fp64), which is 0 for ignored labels. The gradients are those of sum(losses) *
// grad_scale: d_y_Cd is overwritten, and d_head_Vd follows `accumulate`. In training, grad_scale is the loss scale /
// (tokens of the global batch).
void head_loss(const Context&, const at::Tensor& y_Cd, const at::Tensor& labels_C, const at::Tensor& head_Vd,
               double grad_scale, at::Tensor& losses_C, at::Tensor& d_y_Cd, at::Tensor& d_head_Vd);
// The head of tensor ranks that share the vocabulary; this rank has v rows of it (TensorSlice). head_logits_sums
// computes the logits of a chunk (fp32; fp64 in fp64) and, for each token, the log of the sum of their exponentials and
// the logit of the label, or 0 when another rank has the label.
void head_logits_sums(const Context&, const at::Tensor& y_Cd, const at::Tensor& labels_C, const at::Tensor& head_vd,
                      at::Tensor& logits_Cv, at::Tensor& sums_C2);
// The next two functions take all ranks' sums_RC2, which have the rows of a whole chunk; the first C rows count. They
// compute the losses, and overwrite the logits with their gradient. d_y_Cd is this rank's part of a sum over ranks.
void head_shared_loss(const Context&, const at::Tensor& sums_RC2, const at::Tensor& labels_C, at::Tensor& losses_C);
void head_shared_gradient(const Context&, const at::Tensor& sums_RC2, const at::Tensor& labels_C, at::Tensor& logits_Cv,
                          const at::Tensor& y_Cd, const at::Tensor& head_vd, double grad_scale, at::Tensor& losses_C,
                          at::Tensor& d_y_Cd, at::Tensor& d_head_vd);
// Computes only the losses, for evaluation.
void head_loss_forward(const Context&, const at::Tensor& y_Cd, const at::Tensor& labels_C, const at::Tensor& head_Vd,
                       at::Tensor& losses_C);
// Computes logits in fp32 (fp64 in fp64), for export checks and generation.
void head_logits(const Context&, const at::Tensor& y_Cd, const at::Tensor& head_Vd, at::Tensor& logits_CV);

}  // namespace molen::model
