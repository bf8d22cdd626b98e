// The parts on device-generic ATen operators (Kernels::kAten), with the same meanings as in model/parts.h. On the host,
// their temporaries and what an operator allocates itself (math/allocation.h) are taken from Context::scratch in the
// order that program/parts/ counts, so the scratch is known exactly. Attention on the host is molen's own.
#pragma once

#include "model/parts.h"

namespace molen::model::aten {

void embed_forward(const Context&, const at::Tensor& ids, const at::Tensor& table, const at::Tensor& positions,
                   at::Tensor& x);
void embed_backward(const Context&, const at::Tensor& ids, const at::Tensor& d_x, at::Tensor& d_table,
                    at::Tensor& d_positions);

// y = norm(x) W^T + b. norm_qkv and norm_up share it.
void norm_linear_forward(const Context&, const at::Tensor& x, const NormWeights&, const Linear&, NormSaved&,
                         at::Tensor& y);
void norm_linear_backward(const Context&, const at::Tensor& d_y, const at::Tensor& x, const NormSaved&,
                          const NormWeights&, const Linear&, at::Tensor& d_x, NormWeights& d_norm, Linear& d_linear);
void qk_norm_forward(const Context&, const at::Tensor& projected, const QkNormWeights&, at::Tensor& normed);
void qk_norm_backward(const Context&, const at::Tensor& projected, const QkNormWeights&, at::Tensor& d_qkv,
                      QkNormWeights& d_norms);
void rotate(const Context&, const RopeTable&, bool back, at::Tensor& qkv);

void attention_forward(const Context&, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse);
void attention_backward(const Context&, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                        const at::Tensor& lse, at::Tensor& d_qkv);

// y = residual + x W^T + b, and the backward of x W^T + b or a half of it.
void linear_forward(const Context&, const at::Tensor& x, const at::Tensor& residual, const Linear&, at::Tensor& y);
void linear_backward(const Context&, const at::Tensor& d_y, const at::Tensor& x, const Linear&, at::Tensor& d_x,
                     Linear& d_linear);

void activation_forward(const Context&, const at::Tensor& up, at::Tensor& a);
void activation_backward(const Context&, const at::Tensor& d_a, const at::Tensor& up, at::Tensor& d_up);

void norm_forward(const Context&, const at::Tensor& x, const NormWeights&, NormSaved&, at::Tensor& y);
void norm_backward(const Context&, const at::Tensor& d_y, const at::Tensor& x, const NormSaved&, const NormWeights&,
                   bool add, at::Tensor& d_x, NormWeights& d_norm);

void head_loss(const Context&, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head, double grad_scale,
               at::Tensor& losses, at::Tensor& d_y, at::Tensor& d_head);
void head_logits_sums(const Context&, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                      at::Tensor& logits, at::Tensor& sums);
void head_shared_loss(const Context&, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses);
void head_shared_gradient(const Context&, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& logits,
                          const at::Tensor& y, const at::Tensor& head, double grad_scale, at::Tensor& losses,
                          at::Tensor& d_y, at::Tensor& d_head);
void head_loss_forward(const Context&, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                       at::Tensor& losses);
void head_logits(const Context&, const at::Tensor& y, const at::Tensor& head, at::Tensor& logits);

}  // namespace molen::model::aten
