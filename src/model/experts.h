// The parts of a sparse layer (arch/parts.h) on tensors, with the conventions of model/parts.h. Letters: E experts, of
// which each token has t; w is the width of one expert, and W the number of columns of its gate|up. M is the number of
// rows in expert order, one for each of the N*t slots that is not dropped (math/expert_order.h). ATen's kernels take
// rows in bf16 on the host.
#pragma once

#include <span>
#include <vector>

#include "base/position_run.h"
#include "model/parts.h"

namespace molen::model {

// The results of the router, which the later parts and the router's backward read.
struct Routed {
  // choice is int32, with marks of the dropped choices (math/expert_order.h). The other tensors are fp32 (fp64 in
  // fp64).
  at::Tensor scores_NE, lse_N, choice_Nt, weights_Nt;
  at::Tensor load_B2E;  // for each sequence, the tokens of each expert and the sums of their scores
  // Undefined if the rank has whole sequences, or if experts have no capacity. Otherwise the router drops nothing, and
  // leaves the numbers of its choices here (int32, math/expert_order.h: count_choices).
  at::Tensor counts_B22E = {};
};
// The router's matrix [E, d], and the bias [E] that only the choice uses (undefined: none). As gradients, the bias
// holds the number of tokens of each expert (arch::moved_by_load).
struct RouterWeights {
  at::Tensor weight_Ed, bias_E = {};
};

// Over the tokens that count: the sum of the z-loss and the number of dropped choices.
struct RouterSums {
  double z = 0.0, dropped = 0.0;
};

// labels_N is int32. Tokens whose label is below 0 take no part in the losses, and take the capacity that the other
// tokens leave. When labels_N is undefined, all tokens count.
RouterSums route_forward(const Context&, const at::Tensor& mid_Nd, const at::Tensor& labels_N, const NormWeights&,
                         const RouterWeights&, NormSaved&, at::Tensor& rows_Nd, Routed&);
// Marks the choices beyond the capacity of experts if ranks share each sequence. `runs` has the positions of each of
// these ranks, `rank` is this one, and counts_cB22E has the counts of all. Returns the number of dropped choices of the
// rank's tokens that count.
double limit(const Context&, const at::Tensor& labels_N, std::span<const std::vector<PositionRun>> runs,
             std::int64_t rank, const at::Tensor& counts_cB22E, at::Tensor& choice_Nt);
// Returns the balance loss, summed over the tokens that count. load_B2E is the load of whole sequences of `sequence`
// tokens, over all ranks that share them.
double balance_loss(const Context&, const at::Tensor& load_B2E, std::int64_t sequence);
// Computes the gradients of grad_scale * (sum of the tokens' losses + the router's losses with the factors of
// arch::Experts). When ranks share the part, the gradients are summed over the ranks. Only the first of these ranks
// adds the gradients of the router's losses and counts the tokens of each expert. `sequence` and the load are as for
// balance_loss. d_rows_Nd, the gradient of the rows from the experts, is overwritten.
void route_backward(const Context&, at::Tensor& d_rows_Nd, const at::Tensor& d_weights_Nt, const at::Tensor& mid_Nd,
                    const at::Tensor& labels_N, const NormSaved&, const Routed&, const NormWeights&,
                    const RouterWeights&, std::int64_t sequence, double grad_scale, at::Tensor& d_x_Nd,
                    NormWeights& d_norm, RouterWeights& d_router);

// places_Nt and offsets (E + 1) are int32.
void dispatch_forward(const Context&, const at::Tensor& rows_Nd, const at::Tensor& choice_Nt, at::Tensor& expert_Md,
                      at::Tensor& places_Nt, at::Tensor& offsets);
void dispatch_backward(const Context&, const at::Tensor& d_expert_Md, const at::Tensor& places_Nt,
                       at::Tensor& d_rows_Nd);

// Computes one product for each expert on its rows; weight_EOI has the matrices of all experts.
void experts_forward(const Context&, const at::Tensor& x_MI, const at::Tensor& offsets, const at::Tensor& weight_EOI,
                     at::Tensor& y_MO);
void experts_backward(const Context&, const at::Tensor& d_y_MO, const at::Tensor& x_MI, const at::Tensor& offsets,
                      const at::Tensor& weight_EOI, at::Tensor& d_x_MI, at::Tensor& d_weight_EOI);
// The activation between the products is that of the MLP (activation_forward, on M rows).

// The up projection of the shared experts reads the router's rows, and its backward adds to their gradient. The other
// parts of the shared experts are those of the MLP.
void shared_up_forward(const Context&, const at::Tensor& rows_Nd, const Linear& up, at::Tensor& up_NX);
void shared_up_backward(const Context&, const at::Tensor& d_up_NX, const at::Tensor& rows_Nd, const Linear& up,
                        at::Tensor& d_rows_Nd, Linear& d_linear);

// y = residual + the weighted sum of each token's rows. The residual has all rows; when ranks share the part, it has
// only the rank's own rows (TensorSlice::first_row).
void combine_forward(const Context&, const at::Tensor& expert_Md, const at::Tensor& places_Nt,
                     const at::Tensor& weights_Nt, const at::Tensor& mid_Nd, at::Tensor& y_Nd);
void combine_backward(const Context&, const at::Tensor& d_y_Nd, const at::Tensor& expert_Md,
                      const at::Tensor& places_Nt, const at::Tensor& weights_Nt, at::Tensor& d_expert_Md,
                      at::Tensor& d_weights_Nt);

}  // namespace molen::model
