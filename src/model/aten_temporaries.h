// Properties of tensors that the parts on ATen's operators (model/parts_aten.cpp) use, and the temporaries of these
// parts.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "math/allocation.h"
#include "math/vector_kernels.h"
#include "model/parts.h"

namespace molen::model::aten {

// Returns the type of statistics, losses and sums: at least fp32.
inline at::ScalarType accurate(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
inline bool low_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}
// Returns whether molen's own CPU kernels apply, which take data on the host in any type but fp64.
inline bool own_kernels(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() != at::kDouble;
}

// Returns whether rows are bf16 on the host. For these rows, molen has kernels that widen each value as they use it.
inline bool own_narrow(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == at::kBFloat16;
}
inline const math::NarrowKernels& narrow_kernels() {
  return math::vector_kernels().narrow;
}
inline int threads_of(const Context& c) {
  return std::max(c.shape.threads, 1);
}
// Returns null for an undefined tensor.
inline std::uint16_t* bits(const at::Tensor& t) {
  if (!t.defined()) return nullptr;
  MOLEN_CHECK(t.is_contiguous(), "an operand of a kernel is not contiguous");
  return static_cast<std::uint16_t*>(t.data_ptr());
}
inline float* floats(const at::Tensor& t) {
  return t.defined() ? t.data_ptr<float>() : nullptr;
}

// gradient (+)= value
inline void add_into(bool accumulate, at::Tensor& gradient, const at::Tensor& value) {
  if (accumulate)
    gradient.add_(value.view_as(gradient));
  else
    gradient.copy_(value.view_as(gradient));
}

// --- temporaries, which program/parts/ counts

// Returns a temporary. On the host it is taken from the op's scratch, in the order of the calls; elsewhere it comes
// from the device's allocator.
inline at::Tensor temporary(const Context& c, const at::Tensor& like, at::ScalarType type, at::IntArrayRef shape) {
  const at::TensorOptions options = like.options().dtype(type);
  if (!like.device().is_cpu()) return at::empty(shape, options);
  std::int64_t elements = 1;
  for (const std::int64_t n : shape) elements *= n;
  return at::from_blob(c.scratch.take_bytes(elements * static_cast<std::int64_t>(c10::elementSize(type))), shape,
                       options);
}
// Returns `t` itself when it is at least fp32.
inline at::Tensor widened(const Context& c, const at::Tensor& t) {
  if (!t.defined() || !low_precision(t)) return t;
  at::Tensor wide = temporary(c, t, accurate(t), t.sizes());
  if (own_narrow(t) && t.is_contiguous())
    narrow_kernels().widen(threads_of(c), t.numel(), bits(t), false, floats(wide));
  else
    wide.copy_(t);
  return wide;
}

}  // namespace molen::model::aten
