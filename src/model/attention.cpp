// The implementations of causal attention, by name (program/parts/attention.cpp declares them).
#include "model/context.h"
#include "model/kernels.h"
#include "model/parts_aten.h"

namespace molen::model {
void attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  if (c.document_start || !c.positions.empty()) return document_attention_forward(c, qkv, o, lse);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.attention_forward(c, pointer<T>(qkv), pointer<T>(o), pointer<T>(lse), c.scratch);
      },
      [&] { aten::attention_forward(c, qkv, o, lse); });
}

void attention_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                        const at::Tensor& lse, at::Tensor& d_qkv) {
  check_whole(c, arch::Part::kAttention);
  if (c.document_start || !c.positions.empty()) return document_attention_backward(c, d_o, qkv, o, lse, d_qkv);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.attention_backward(c, pointer<T>(d_o), pointer<T>(qkv), pointer<T>(o), pointer<T>(lse), pointer<T>(d_qkv),
                             c.scratch);
      },
      [&] { aten::attention_backward(c, d_o, qkv, o, lse, d_qkv); });
}

}  // namespace molen::model
