#include "model/experts_aten.h"

#include <cstring>

#include "math/experts.h"
#include "model/aten_temporaries.h"
#include "model/parts_aten.h"
#include "model/routing.h"

namespace molen::model::aten {
namespace {

using math::Rewind;

void check_narrow(const at::Tensor& rows) {
  MOLEN_CHECK(own_narrow(rows), "experts on ATen's kernels are bf16 on the host");
}

}  // namespace

// The logits are rounded like the results of every product, and the scores are computed from them in fp32, as in
// transformers.
RouterSums route_forward(const Context& c, const at::Tensor& mid, const at::Tensor& labels, const NormWeights& norm,
                         const RouterWeights& router, NormSaved& saved, at::Tensor& rows, Routed& routed) {
  check_narrow(mid);
  norm_forward(c, mid, norm, saved, rows);
  const Rewind rewind(c.scratch);
  at::Tensor rounded = temporary(c, mid, at::kBFloat16, routed.scores_NE.sizes());
  linear_forward(c, rows, at::Tensor(), {router.weight_Ed, {}}, rounded);
  const float* bias = router.bias_E.defined() ? floats(widened(c, router.bias_E)) : nullptr;
  return choose_experts<float>(c, floats(widened(c, rounded)), bias, labels, routed);
}

void route_backward(const Context& c, at::Tensor& d_rows, const at::Tensor& d_weights, const at::Tensor& mid,
                    const at::Tensor& labels, const NormSaved& saved, const Routed& routed, const NormWeights& norm,
                    const RouterWeights& router, std::int64_t sequence, double grad_scale, at::Tensor& d_x,
                    NormWeights& d_norm, RouterWeights& d_router) {
  check_narrow(mid);
  const Rewind rewind(c.scratch);
  const at::Tensor d_logits = temporary(c, mid, at::kFloat, routed.scores_NE.sizes()),
                   rounded = temporary(c, mid, at::kBFloat16, routed.scores_NE.sizes()),
                   normed = temporary(c, mid, at::kBFloat16, mid.sizes());
  choose_backward(c, d_weights, labels, routed, sequence, grad_scale, floats(d_logits));
  rounded.copy_(d_logits);
  {
    const Rewind again(c.scratch);
    narrow_kernels().norm_apply(threads_of(c), mid.size(0), mid.size(1), bits(mid), floats(saved.rstd_N),
                                floats(saved.mean_N), bits(norm.weight_d), bits(norm.bias_d), bits(normed));
    Context of_weights = c;
    of_weights.pass = arch::Pass::kBackwardWeights;
    Linear d_linear{d_router.weight_Ed, {}};
    at::Tensor none;
    linear_backward(of_weights, rounded, normed, {router.weight_Ed, {}}, none, d_linear);
  }
  Context of_rows = c;
  of_rows.share = {};  // the product is added in all rows, because d_rows is already a term of a sum
  linear_forward(of_rows, rounded, d_rows, {router.weight_Ed.t(), {}}, d_rows);
  if (d_router.bias_E.defined()) count_tokens(c, labels, routed, floats(d_router.bias_E));
  norm_backward(c, d_rows, mid, saved, norm, true, d_x, d_norm);
}

void dispatch_forward(const Context& c, const at::Tensor& rows, const at::Tensor& places, at::Tensor& expert_rows) {
  check_narrow(rows);
  math::dispatch(threads_of(c), slots_of(places, rows), bits(rows), bits(expert_rows));
}

void dispatch_backward(const Context& c, const at::Tensor& d_expert_rows, const at::Tensor& places,
                       at::Tensor& d_rows) {
  check_narrow(d_rows);
  math::dispatch_backward(threads_of(c), slots_of(places, d_rows), bits(d_expert_rows), false, bits(d_rows));
}

void experts_forward(const Context&, const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& weight,
                     at::Tensor& y) {
  check_narrow(x);
  math::grouped_nt(groups_of(offsets, weight), bits(x), bits(weight), bits(y));
}

void experts_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& offsets,
                      const at::Tensor& weight, at::Tensor& d_x, at::Tensor& d_weight) {
  check_narrow(x);
  const Rewind rewind(c.scratch);
  const math::Groups groups = groups_of(offsets, weight);
  math::grouped_nn(groups, bits(d_y), bits(weight), bits(d_x));
  const std::int64_t bytes = math::grouped_tn_narrow_scratch(threads_of(c), x.size(0), groups.out, groups.in);
  math::grouped_tn(groups, bits(d_y), bits(x), c.accumulate, floats(d_weight), c.scratch.take_span(bytes));
}

void shared_up_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& rows, const Linear& up,
                        at::Tensor& d_rows, Linear& d_up) {
  check_narrow(rows);
  Context of_rows = c;
  of_rows.share = {};  // as in route_backward
  linear_forward(of_rows, d_y, d_rows, {up.weight_OI.t(), {}}, d_rows);
  Context of_weights = c;
  of_weights.pass = arch::Pass::kBackwardWeights;
  at::Tensor none;
  linear_backward(of_weights, d_y, rows, up, none, d_up);
}

void combine_forward(const Context& c, const at::Tensor& expert_rows, const at::Tensor& places,
                     const at::Tensor& weights, const at::Tensor& mid, at::Tensor& y) {
  check_narrow(y);
  const bool all = mid.size(0) == y.size(0);
  if (!all) y.zero_();
  y.narrow(0, all ? 0 : c.share.first_row, mid.size(0)).copy_(mid);
  math::combine(threads_of(c), slots_of(places, y), floats(weights), bits(expert_rows), true, bits(y));
}

void combine_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& expert_rows, const at::Tensor& places,
                      const at::Tensor& weights, at::Tensor& d_expert_rows, at::Tensor& d_weights) {
  check_narrow(d_y);
  math::combine_backward(threads_of(c), slots_of(places, d_y), floats(weights), bits(d_y), bits(expert_rows),
                         bits(d_expert_rows), floats(d_weights));
}

}  // namespace molen::model::aten
