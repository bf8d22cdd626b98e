// The two sets of kernels on raw pointers, the reference and the fused one, with the same interface, and the pieces
// that several parts assemble from them. Only the sources of the parts include this header.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "math/attention.h"
#include "math/gemm.h"
#include "math/reference.h"
#include "math/vector_kernels.h"
#include "model/parts.h"
#include "model/tensor_slice.h"

namespace molen::model {

using arch::Activation;
using arch::Kernels;
inline constexpr Kernels kUnfused{"unfused"};  // attention that writes its scores out (program/parts/attention.cpp)
using math::Scratch;
using i64 = std::int64_t;

// Sizes and statistics of one norm; mean is null for RMSNorm.
template <class T>
struct NormPointers {
  T *rstd, *mean;
  const T *w, *b;
};

// --- the two sets of kernels

template <class T>
struct Reference {
  using Real = T;
  int threads;

  void matmul_nt(i64 m, i64 n, i64 k, const T* a, const T* b, bool add, T* c) const {
    math::reference::matmul_nt(threads, m, n, k, a, b, add, c);
  }
  void matmul_nn(i64 m, i64 n, i64 k, const T* a, const T* b, bool add, T* c) const {
    math::reference::matmul_nn(threads, m, n, k, a, b, add, c);
  }
  void matmul_tn(i64 m, i64 n, i64 k, const T* a, const T* b, bool add, T* c) const {
    math::reference::matmul_tn(threads, m, n, k, a, b, add, c);
  }
  void fill_rows(i64 rows, i64 columns, const T* source, const T* bias, T* out) const {
    math::reference::fill_rows(threads, rows, columns, source, bias, out);
  }
  void column_sums(i64 rows, i64 columns, const T* d_y, bool add, T* d_bias) const {
    math::reference::column_sums(threads, rows, columns, d_y, add, d_bias);
  }
  void norm_forward(i64 rows, i64 d, double eps, const T* x, const NormPointers<T>& p, T* y) const {
    if (p.mean)
      math::reference::layer_norm_forward(threads, rows, d, eps, x, p.w, p.b, p.rstd, p.mean, y);
    else
      math::reference::rms_norm_forward(threads, rows, d, eps, x, p.w, p.rstd, y);
  }
  void norm_apply(i64 rows, i64 d, const T* x, const NormPointers<T>& p, T* y) const {
    math::reference::norm_apply(threads, rows, d, x, p.rstd, p.mean, p.w, p.b, y);
  }
  void norm_backward(i64 rows, i64 d, const T* d_y, const T* x, const NormPointers<T>& p, bool add, T* d_x,
                     bool accumulate, T* d_w, T* d_b, Scratch&) const {
    math::reference::norm_backward(threads, rows, d, d_y, x, p.rstd, p.mean, p.w, add, d_x, accumulate, d_w, d_b);
  }
  void qk_norm_forward(i64 rows, const math::QkNormSizes& sizes, double eps, const T* x, const T* w_q, const T* w_k,
                       T* y) const {
    math::reference::qk_norm_forward(threads, rows, sizes, eps, x, w_q, w_k, y);
  }
  void qk_norm_backward(i64 rows, const math::QkNormSizes& sizes, double eps, const T* x, const T* w_q, const T* w_k,
                        T* d, bool accumulate, T* d_w_q, T* d_w_k, Scratch& scratch) const {
    math::reference::qk_norm_backward(threads, rows, sizes, eps, x, w_q, w_k, d, accumulate, d_w_q, d_w_k, scratch);
  }
  void rope(i64 rows, i64 sequence, i64 heads, i64 head_dim, i64 width, const T* cosine, const T* sine, bool inverse,
            T* qkv) const {
    math::reference::rope(threads, rows, sequence, heads, head_dim, width, cosine, sine, inverse, qkv);
  }
  void attention_forward(const Context& c, const T* qkv, T* o, T* lse, Scratch& scratch) const {
    const std::vector<double> slopes = slopes_of<double>(c);
    math::reference::attention_forward(threads, sizes(c), slopes.empty() ? nullptr : slopes.data(), qkv, o, lse,
                                       scratch);
  }
  void attention_backward(const Context& c, const T* d_o, const T* qkv, const T* o, const T* lse, T* d_qkv,
                          Scratch& scratch) const {
    const std::vector<double> slopes = slopes_of<double>(c);
    math::reference::attention_backward(threads, sizes(c), slopes.empty() ? nullptr : slopes.data(), d_o, qkv, o, lse,
                                        d_qkv, scratch);
  }
  void swiglu_forward(i64 rows, i64 f, const T* up, T* a) const {
    math::reference::swiglu_forward(threads, rows, f, up, a);
  }
  void swiglu_backward(i64 rows, i64 f, const T* d_a, const T* up, T* d_up) const {
    math::reference::swiglu_backward(threads, rows, f, d_a, up, d_up);
  }
  void gelu_tanh_forward(i64 count, const T* x, T* y) const {
    math::reference::gelu_tanh_forward(threads, count, x, y);
  }
  void gelu_tanh_backward(i64 count, const T* d_y, const T* x, T* d_x) const {
    math::reference::gelu_tanh_backward(threads, count, d_y, x, d_x);
  }
  void embedding_forward(i64 rows, i64 sequence, i64 d, const std::int32_t* ids, const T* table, const T* positions,
                         T* x) const {
    math::reference::embedding_forward(threads, rows, sequence, d, ids, table, positions, x);
  }
  void embedding_backward(i64 rows, i64 sequence, i64 d, const std::int32_t* ids, const T* d_x, T* d_table,
                          T* d_positions) const {
    math::reference::embedding_backward(threads, rows, sequence, d, ids, d_x, d_table, d_positions);
  }
  void cross_entropy(i64 rows, i64 vocabulary, const std::int32_t* labels, bool gradient, double scale, T* logits,
                     T* losses) const {
    math::reference::cross_entropy(threads, rows, vocabulary, labels, gradient, scale, logits, losses);
  }
  void fill_zero(i64 count, T* out) const { std::fill(out, out + count, T(0)); }
  void shared_sums(i64 rows, i64 vocabulary, i64 first, const std::int32_t* labels, const T* logits, T* sums) const {
    math::reference::shared_sums(threads, rows, vocabulary, first, labels, logits, sums);
  }
  void shared_gradient(i64 rows, i64 vocabulary, const std::int32_t* labels, const T* lse, const T* scale,
                       T* logits) const {
    math::reference::shared_gradient(threads, rows, vocabulary, labels, lse, scale, logits);
  }

 private:
  static math::reference::AttentionSizes sizes(const Context& c) {
    return {c.shape.batch, c.shape.sequence, c.arch.heads, c.arch.kv_heads, c.arch.head_dim};
  }
};

struct Fused {
  using Real = float;
  int threads;
  const math::VectorKernels& v = math::vector_kernels();

  void matmul_nt(i64 m, i64 n, i64 k, const float* a, const float* b, bool add, float* c) const {
    math::matmul_nt(m, n, k, a, b, add, c);
  }
  void matmul_nn(i64 m, i64 n, i64 k, const float* a, const float* b, bool add, float* c) const {
    math::matmul_nn(m, n, k, a, b, add, c);
  }
  void matmul_tn(i64 m, i64 n, i64 k, const float* a, const float* b, bool add, float* c) const {
    math::matmul_tn(m, n, k, a, b, add, c);
  }
  void fill_rows(i64 rows, i64 columns, const float* source, const float* bias, float* out) const {
    v.fill_rows(threads, rows, columns, source, bias, out);
  }
  void column_sums(i64 rows, i64 columns, const float* d_y, bool add, float* d_bias) const {
    v.column_sums(threads, rows, columns, d_y, add, d_bias);
  }
  void norm_forward(i64 rows, i64 d, double eps, const float* x, const NormPointers<float>& p, float* y) const {
    v.norm_forward(threads, rows, d, eps, x, p.w, p.b, p.rstd, p.mean, y);
  }
  void norm_apply(i64 rows, i64 d, const float* x, const NormPointers<float>& p, float* y) const {
    v.norm_apply(threads, rows, d, x, p.rstd, p.mean, p.w, p.b, y);
  }
  void norm_backward(i64 rows, i64 d, const float* d_y, const float* x, const NormPointers<float>& p, bool add,
                     float* d_x, bool accumulate, float* d_w, float* d_b, Scratch& scratch) const {
    float* partial = d_w || d_b ? scratch.take<float>(threads * d * ((d_w ? 1 : 0) + (d_b ? 1 : 0))) : nullptr;
    v.norm_backward(threads, rows, d, d_y, x, p.rstd, p.mean, p.w, add, d_x, accumulate, d_w, d_b, partial);
  }
  void qk_norm_forward(i64 rows, const math::QkNormSizes& sizes, double eps, const float* x, const float* w_q,
                       const float* w_k, float* y) const {
    v.qk_norm_forward(threads, rows, sizes, eps, x, w_q, w_k, y);
  }
  void qk_norm_backward(i64 rows, const math::QkNormSizes& sizes, double eps, const float* x, const float* w_q,
                        const float* w_k, float* d, bool accumulate, float* d_w_q, float* d_w_k,
                        Scratch& scratch) const {
    float* partial = scratch.take<float>(threads * (sizes.query.length + sizes.key.length));
    v.qk_norm_backward(threads, rows, sizes, eps, x, w_q, w_k, d, accumulate, d_w_q, d_w_k, partial);
  }
  void rope(i64 rows, i64 sequence, i64 heads, i64 head_dim, i64 width, const float* cosine, const float* sine,
            bool inverse, float* qkv) const {
    v.rope(threads, rows, sequence, heads, head_dim, width, cosine, sine, inverse, qkv);
  }
  void attention_forward(const Context& c, const float* qkv, float* o, float* lse, Scratch& scratch) const {
    const std::vector<float> slopes = slopes_of<float>(c);
    const math::AttentionShape shape = sizes(c, slopes);
    math::attention_forward(shape, qkv, o, lse, scratch.take_bytes(math::attention_forward_scratch(shape)));
  }
  void attention_backward(const Context& c, const float* d_o, const float* qkv, const float* o, const float* lse,
                          float* d_qkv, Scratch& scratch) const {
    const std::vector<float> slopes = slopes_of<float>(c);
    const math::AttentionShape shape = sizes(c, slopes);
    math::attention_backward(shape, d_o, qkv, o, lse, d_qkv,
                             scratch.take_bytes(math::attention_backward_scratch(shape)));
  }
  void swiglu_forward(i64 rows, i64 f, const float* up, float* a) const { v.swiglu_forward(threads, rows, f, up, a); }
  void swiglu_backward(i64 rows, i64 f, const float* d_a, const float* up, float* d_up) const {
    v.swiglu_backward(threads, rows, f, d_a, up, d_up);
  }
  void gelu_tanh_forward(i64 count, const float* x, float* y) const { v.gelu_tanh_forward(threads, count, x, y); }
  void gelu_tanh_backward(i64 count, const float* d_y, const float* x, float* d_x) const {
    v.gelu_tanh_backward(threads, count, d_y, x, d_x);
  }
  void embedding_forward(i64 rows, i64 sequence, i64 d, const std::int32_t* ids, const float* table,
                         const float* positions, float* x) const {
    v.embedding_forward(threads, rows, sequence, d, ids, table, positions, x);
  }
  void embedding_backward(i64 rows, i64 sequence, i64 d, const std::int32_t* ids, const float* d_x, float* d_table,
                          float* d_positions) const {
    v.embedding_backward(threads, rows, sequence, d, ids, d_x, d_table, d_positions);
  }
  void cross_entropy(i64 rows, i64 vocabulary, const std::int32_t* labels, bool gradient, double scale, float* logits,
                     float* losses) const {
    v.cross_entropy(threads, rows, vocabulary, labels, gradient, scale, logits, losses);
  }
  void fill_zero(i64 count, float* out) const { v.fill_zero(threads, count, out); }
  void shared_sums(i64 rows, i64 vocabulary, i64 first, const std::int32_t* labels, const float* logits,
                   float* sums) const {
    v.shared_sums(threads, rows, vocabulary, first, labels, logits, sums);
  }
  void shared_gradient(i64 rows, i64 vocabulary, const std::int32_t* labels, const float* lse, const float* scale,
                       float* logits) const {
    v.shared_gradient(threads, rows, vocabulary, labels, lse, scale, logits);
  }

 private:
  math::AttentionShape sizes(const Context& c, const std::vector<float>& slopes) const {
    math::AttentionShape shape;
    shape.B = c.shape.batch, shape.S = c.shape.sequence, shape.h = c.arch.heads, shape.k = c.arch.kv_heads,
    shape.D = c.arch.head_dim;
    shape.threads = threads;
    shape.alibi = slopes.empty() ? nullptr : slopes.data();
    return shape;
  }
};

// --- tensors to pointers

// Returns null for an undefined tensor.
template <class T>
T* pointer(const at::Tensor& t) {
  if (!t.defined()) return nullptr;
  MOLEN_CHECK(t.is_contiguous() && t.device().is_cpu(), "a part's operand is not contiguous CPU memory");
  return t.data_ptr<T>();
}
template <class T>
NormPointers<T> pointers(const NormWeights& w, const NormSaved& saved) {
  return {pointer<T>(saved.rstd_N), pointer<T>(saved.mean_N), pointer<T>(w.weight_d), pointer<T>(w.bias_d)};
}

// Calls `with` with the kernels of the context, or calls `aten`.
template <class With, class Aten>
void run(const Context& c, const With& with, const Aten& aten) {
  const int threads = std::max(c.shape.threads, 1);
  if (c.shape.kernels == Kernels::kAten) return aten();
  if (c.shape.kernels == Kernels::kFused) {
    if (c.shape.compute == DType::kF32) return with(Fused{threads});
    throw Error("the fused kernels compute in fp32, not in {}", name_of(c.shape.compute));
  }
  if (c.shape.kernels != Kernels::kReference) throw Error("the part has no kernels \"{}\"", name_of(c.shape.kernels));
  if (c.shape.compute == DType::kF64) return with(Reference<double>{threads});
  if (c.shape.compute == DType::kF32) return with(Reference<float>{threads});
  throw Error("the reference kernels compute in fp64 or fp32, not in {}", name_of(c.shape.compute));
}

template <class K>
using RealOf = typename K::Real;

// --- pieces that parts share

// y = [residual] + x W^T [+ b]. Residual and bias are added only in `rows` rows from `first` on.
template <class K>
void linear_forward(const K& k, const RealOf<K>* x, const at::Tensor& residual, const Linear& w, i64 first, i64 rows,
                    at::Tensor& y) {
  using T = RealOf<K>;
  const i64 all = y.size(0), out = w.weight_OI.size(0), in = w.weight_OI.size(1);
  const bool start = residual.defined() || w.bias_O.defined();
  if (start) {
    T* to = pointer<T>(y);
    k.fill_zero(first * out, to);
    k.fill_rows(rows, out, pointer<T>(residual), pointer<T>(w.bias_O), to + first * out);
    k.fill_zero((all - first - rows) * out, to + (first + rows) * out);
  }
  k.matmul_nt(all, out, in, x, pointer<T>(w.weight_OI), start, pointer<T>(y));
}

// d_W (+)= d_y^T x and d_b (+)= sum d_y. The bias gradient sums `rows` rows from `first` on.
template <class K>
void linear_weight_gradient(const K& k, bool accumulate, const at::Tensor& d_y, const RealOf<K>* x, i64 first, i64 rows,
                            Linear& d_w) {
  using T = RealOf<K>;
  const i64 all = d_y.size(0), out = d_w.weight_OI.size(0), in = d_w.weight_OI.size(1);
  k.matmul_tn(out, in, all, pointer<T>(d_y), x, accumulate, pointer<T>(d_w.weight_OI));
  if (d_w.bias_O.defined()) k.column_sums(rows, out, pointer<T>(d_y) + first * out, accumulate, pointer<T>(d_w.bias_O));
}

template <class K>
void linear_backward(const K& k, const Context& c, const at::Tensor& d_y, const at::Tensor& x, const Linear& w,
                     at::Tensor& d_x, Linear& d_w) {
  using T = RealOf<K>;
  const i64 rows = d_y.size(0);
  if (c.of_input())
    k.matmul_nn(rows, w.weight_OI.size(1), w.weight_OI.size(0), pointer<T>(d_y), pointer<T>(w.weight_OI), false,
                pointer<T>(d_x));
  if (c.of_weights())
    linear_weight_gradient(k, c.accumulate, d_y, pointer<T>(x), c.share.first_row, c.share.count_rows(rows), d_w);
}

// Adds to d_x in the rank's rows and overwrites the other rows, to which another rank adds.
template <class K>
void norm_backward_rows(const K& k, const Context& c, const RealOf<K>* d_y, const at::Tensor& x,
                        const NormPointers<RealOf<K>>& p, at::Tensor& d_x, NormWeights& d_norm) {
  using T = RealOf<K>;
  const i64 all = x.size(0), d = x.size(1);
  const i64 rows = c.share.residual_rows ? 0 : c.share.count_rows(all), first = rows > 0 ? c.share.first_row : 0;
  bool accumulate = c.accumulate;
  const auto part = [&](i64 from, i64 count, bool add) {
    if (count == 0) return;
    const NormPointers<T> q{p.rstd + from, p.mean ? p.mean + from : nullptr, p.w, p.b};
    const i64 used = c.scratch.used();
    k.norm_backward(count, d, d_y + from * d, pointer<T>(x) + from * d, q, add, pointer<T>(d_x) + from * d, accumulate,
                    pointer<T>(d_norm.weight_d), pointer<T>(d_norm.bias_d), c.scratch);
    c.scratch.rewind(used);
    accumulate = true;
  };
  part(0, first, false);
  part(first, rows, true);
  part(first + rows, all - first - rows, false);
}

template <class K>
void norm_linear_forward(const K& k, const Context& c, const at::Tensor& x, const NormWeights& norm, const Linear& w,
                         NormSaved& saved, at::Tensor& y) {
  using T = RealOf<K>;
  const i64 rows = x.size(0), d = x.size(1);
  T* normed = c.scratch.take<T>(rows * d);
  k.norm_forward(rows, d, c.arch.norm_eps, pointer<T>(x), pointers<T>(norm, saved), normed);
  linear_forward(k, normed, at::Tensor(), w, 0, rows, y);
}

// Computes the norm's output again for d_W; its gradient then overwrites it.
template <class K>
void norm_linear_backward(const K& k, const Context& c, const at::Tensor& d_y, const at::Tensor& x,
                          const NormSaved& saved, const NormWeights& norm, const Linear& w, at::Tensor& d_x,
                          NormWeights& d_norm, Linear& d_w) {
  using T = RealOf<K>;
  const i64 rows = x.size(0), d = x.size(1);
  const auto p = pointers<T>(norm, saved);
  T* normed = c.scratch.take<T>(rows * d);
  if (c.of_weights()) {
    k.norm_apply(rows, d, pointer<T>(x), p, normed);
    linear_weight_gradient(k, c.accumulate, d_y, normed, 0, rows, d_w);
  }
  if (!c.of_input()) return;
  k.matmul_nn(rows, d, d_y.size(1), pointer<T>(d_y), pointer<T>(w.weight_OI), false, normed);
  norm_backward_rows(k, c, normed, x, p, d_x, d_norm);
}

// Throws Error when the weights half of an unsplit backward is asked for: such a backward runs whole with kInput.
inline void check_whole(const Context& c, arch::Part part) {
  MOLEN_CHECK(c.of_input(), "the backward of {} has no half for the weights alone", arch::name_of(part));
}

}  // namespace molen::model
