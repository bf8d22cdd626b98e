// Attention of context ranks written out in device-generic ATen operators, for devices: all scores at once, in fp32 or
// wider, deterministic. The arguments of model/context.h, queries and their documents given apart.
#pragma once

#include "model/context.h"

namespace molen::model::aten {

void context_attention_forward(const Context&, std::span<const PositionRun> queries, const at::Tensor& qkv,
                               const at::Tensor& kv, std::span<const PositionRun> keys, bool first, at::Tensor& o,
                               at::Tensor& lse);
void context_attention_backward(const Context&, std::span<const PositionRun> queries, const at::Tensor& d_o,
                                const at::Tensor& qkv, const at::Tensor& kv, std::span<const PositionRun> keys,
                                const at::Tensor& o, const at::Tensor& lse, bool add_q, bool add_kv, at::Tensor& d_qkv,
                                at::Tensor& d_kv);

}  // namespace molen::model::aten
