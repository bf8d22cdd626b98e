// The parts of a sparse layer (model/experts.h) on rows in bf16 on the host: the products are ATen's or molen's own
// (math/experts.h), and the router works in fp32.
#pragma once

#include "model/experts.h"

namespace molen::model::aten {

RouterSums route_forward(const Context&, const at::Tensor& mid, const at::Tensor& labels, const NormWeights&,
                         const RouterWeights& router, NormSaved&, at::Tensor& rows, Routed&);
void route_backward(const Context&, at::Tensor& d_rows, const at::Tensor& d_weights, const at::Tensor& mid,
                    const at::Tensor& labels, const NormSaved&, const Routed&, const NormWeights&,
                    const RouterWeights& router, std::int64_t sequence, double grad_scale, at::Tensor& d_x,
                    NormWeights& d_norm, RouterWeights& d_router);
void dispatch_forward(const Context&, const at::Tensor& rows, const at::Tensor& places, at::Tensor& expert_rows);
void dispatch_backward(const Context&, const at::Tensor& d_expert_rows, const at::Tensor& places, at::Tensor& d_rows);
void experts_forward(const Context&, const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& weight,
                     at::Tensor& y);
void experts_backward(const Context&, const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& offsets,
                      const at::Tensor& weight, at::Tensor& d_x, at::Tensor& d_weight);
void shared_up_backward(const Context&, const at::Tensor& d_y, const at::Tensor& rows, const Linear& up,
                        at::Tensor& d_rows, Linear& d_up);

void combine_forward(const Context&, const at::Tensor& expert_rows, const at::Tensor& places, const at::Tensor& weights,
                     const at::Tensor& mid, at::Tensor& y);
void combine_backward(const Context&, const at::Tensor& d_y, const at::Tensor& expert_rows, const at::Tensor& places,
                      const at::Tensor& weights, at::Tensor& d_expert_rows, at::Tensor& d_weights);

}  // namespace molen::model::aten
