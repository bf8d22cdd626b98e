// Assembles the parts from kernels on raw pointers. The same code serves the reference and the fused kernels, which
// have the same interface. parts_aten.cpp has the ATen kernels.
#include "model/parts.h"

#include <ATen/ATen.h>

#include <cmath>

#include "arch/alibi.h"
#include "math/attention.h"
#include "math/gemm.h"
#include "math/reference.h"
#include "math/vector_kernels.h"
#include "model/context.h"
#include "model/parts_aten.h"
#include "model/share.h"

namespace molen::model {
namespace {

using arch::Activation;
using arch::Kernels;
using math::Scratch;
using i64 = std::int64_t;

// Sizes and statistics of one norm; mean is null for RMSNorm.
template <class T>
struct NormPointers {
  T *rstd, *mean;
  const T *w, *b;
};

// --- the two sets of kernels
// ------------------------------------------------------------------------------------------------

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
// ----------------------------------------------------------------------------------------------------

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
  switch (c.shape.kernels) {
    case Kernels::kReference:
      if (c.shape.compute == DType::kF64) return with(Reference<double>{threads});
      if (c.shape.compute == DType::kF32) return with(Reference<float>{threads});
      throw Error("the reference kernels compute in fp64 or fp32, not in {}", name_of(c.shape.compute));
    case Kernels::kFused:
      if (c.shape.compute == DType::kF32) return with(Fused{threads});
      throw Error("the fused kernels compute in fp32, not in {}", name_of(c.shape.compute));
    case Kernels::kAten:
      return aten();
  }
}

template <class K>
using RealOf = typename K::Real;

// --- pieces that parts share
// ------------------------------------------------------------------------------------------------

// y = [residual] + x W^T [+ b]; residual and bias only in `rows` rows from `first` on.
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

// d_W (+)= d_y^T x and d_b (+)= sum d_y; the bias gradient sums `rows` rows from `first` on.
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

// Checks the half of a backward that is not split: it runs whole with kInput.
void check_whole(const Context& c, arch::Part part) {
  MOLEN_CHECK(c.of_input(), "the backward of {} has no half for the weights alone", arch::name_of(part));
}

}  // namespace

// --- RoPE's table
// -----------------------------------------------------------------------------------------------------------

RopeTable make_rope_table(const arch::Architecture& arch, std::int64_t sequence, at::ScalarType dtype,
                          at::Device device) {
  if (arch.position != arch::Position::kRope) return {};
  const i64 half = arch.head_dim / 2;
  const at::Tensor angles = at::empty({sequence, half}, at::kDouble);
  auto* out = angles.data_ptr<double>();
  for (i64 i = 0; i < half; ++i) {
    double frequency = std::pow(arch.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(arch.head_dim));
    if (arch.rope_scaling) {
      // Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, wavelengths in between interpolated.
      const auto& s = *arch.rope_scaling;
      const double wavelength = 2.0 * M_PI / frequency, original = static_cast<double>(s.original_max_sequence);
      if (wavelength > original / s.low_freq_factor) {
        frequency /= s.factor;
      } else if (wavelength > original / s.high_freq_factor) {
        const double smooth = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        frequency = (1.0 - smooth) * frequency / s.factor + smooth * frequency;
      }
    }
    for (i64 p = 0; p < sequence; ++p) out[p * half + i] = static_cast<double>(p) * frequency;
  }
  return {angles.cos().to(device, dtype), angles.sin().to(device, dtype)};
}

at::Tensor make_slopes(const arch::Architecture& arch, int rank, int ranks) {
  const std::int64_t heads = arch.heads / ranks;
  return at::tensor(arch::alibi_slopes(arch.heads), at::kDouble).narrow(0, rank * heads, heads).contiguous();
}

// --- the parts
// --------------------------------------------------------------------------------------------------------------

void embed_forward(const Context& c, const at::Tensor& ids, const at::Tensor& table, const at::Tensor& positions,
                   at::Tensor& x) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 d = x.size(1);
        const std::int32_t* rows = rows_of(c, ids, table.size(0));
        const T* learned = c.share.rank == 0 ? pointer<T>(positions) : nullptr;
        if (!learned || c.positions.empty())
          return k.embedding_forward(x.size(0), c.shape.sequence, d, rows, pointer<T>(table), learned, pointer<T>(x));
        check_positions(c, positions.size(0));
        for_each_run(c, [&](i64 row, i64 count, i64 first) {
          k.embedding_forward(count, count, d, rows + row, pointer<T>(table), learned + first * d,
                              pointer<T>(x) + row * d);
        });
      },
      [&] { aten::embed_forward(c, ids, table, positions, x); });
}

void embed_backward(const Context& c, const at::Tensor& ids, const at::Tensor& d_x, at::Tensor& d_table,
                    at::Tensor& d_positions) {
  check_whole(c, arch::Part::kEmbed);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (!c.accumulate) {
          k.fill_zero(d_table.numel(), pointer<T>(d_table));
          if (d_positions.defined()) k.fill_zero(d_positions.numel(), pointer<T>(d_positions));
        }
        const i64 d = d_x.size(1);
        const std::int32_t* rows = rows_of(c, ids, d_table.size(0));
        T* learned = c.share.rank == 0 ? pointer<T>(d_positions) : nullptr;
        if (!learned || c.positions.empty())
          return k.embedding_backward(d_x.size(0), c.shape.sequence, d, rows, pointer<T>(d_x), pointer<T>(d_table),
                                      learned);
        check_positions(c, d_positions.size(0));
        for_each_run(c, [&](i64 row, i64 count, i64 first) {
          k.embedding_backward(count, count, d, rows + row, pointer<T>(d_x) + row * d, pointer<T>(d_table),
                               learned + first * d);
        });
      },
      [&] { aten::embed_backward(c, ids, d_x, d_table, d_positions); });
}

void norm_qkv_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, const Linear& qkv,
                      NormSaved& saved, at::Tensor& out) {
  run(
      c, [&](const auto& k) { norm_linear_forward(k, c, x, norm, qkv, saved, out); },
      [&] { aten::norm_linear_forward(c, x, norm, qkv, saved, out); });
}

void norm_qkv_backward(const Context& c, const at::Tensor& d_qkv, const at::Tensor& x, const NormSaved& saved,
                       const NormWeights& norm, const Linear& qkv, at::Tensor& d_x, NormWeights& d_norm, Linear& d_w) {
  run(
      c, [&](const auto& k) { norm_linear_backward(k, c, d_qkv, x, saved, norm, qkv, d_x, d_norm, d_w); },
      [&] { aten::norm_linear_backward(c, d_qkv, x, saved, norm, qkv, d_x, d_norm, d_w); });
}

void qk_norm_forward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& normed) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.qk_norm_forward(projected.size(0), qk_norm_sizes(c), c.arch.norm_eps, pointer<T>(projected),
                          pointer<T>(w.query), pointer<T>(w.key), pointer<T>(normed));
      },
      [&] { aten::qk_norm_forward(c, projected, w, normed); });
}

void qk_norm_backward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& d_qkv,
                      QkNormWeights& d_norms) {
  check_whole(c, arch::Part::kQkNorm);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.qk_norm_backward(projected.size(0), qk_norm_sizes(c), c.arch.norm_eps, pointer<T>(projected),
                           pointer<T>(w.query), pointer<T>(w.key), pointer<T>(d_qkv), c.accumulate,
                           pointer<T>(d_norms.query), pointer<T>(d_norms.key), c.scratch);
      },
      [&] { aten::qk_norm_backward(c, projected, w, d_qkv, d_norms); });
}

void rotate(const Context& c, const RopeTable& rope, bool back, at::Tensor& qkv) {
  check_whole(c, arch::Part::kRotate);
  check_rope_rows(c, rope.cos_SD2.size(0));
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.rope(qkv.size(0), c.shape.sequence, c.arch.heads + c.arch.kv_heads, c.arch.head_dim, c.arch.qkv_size(),
               pointer<T>(rope.cos_SD2), pointer<T>(rope.sin_SD2), back, pointer<T>(qkv));
      },
      [&] { aten::rotate(c, rope, back, qkv); });
}

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

void output_projection_forward(const Context& c, const at::Tensor& o, const at::Tensor& x, const Linear& output,
                               at::Tensor& mid) {
  run(
      c,
      [&](const auto& k) {
        linear_forward(k, pointer<RealOf<std::decay_t<decltype(k)>>>(o), x, output, c.share.first_row,
                       c.share.count_rows(mid.size(0)), mid);
      },
      [&] { aten::linear_forward(c, o, x, output, mid); });
}

void output_projection_backward(const Context& c, const at::Tensor& d_x, const at::Tensor& o, const Linear& output,
                                at::Tensor& d_o, Linear& d_output) {
  run(
      c, [&](const auto& k) { linear_backward(k, c, d_x, o, output, d_o, d_output); },
      [&] { aten::linear_backward(c, d_x, o, output, d_o, d_output); });
}

void norm_up_forward(const Context& c, const at::Tensor& mid, const NormWeights& norm, const Linear& up,
                     NormSaved& saved, at::Tensor& out) {
  run(
      c, [&](const auto& k) { norm_linear_forward(k, c, mid, norm, up, saved, out); },
      [&] { aten::norm_linear_forward(c, mid, norm, up, saved, out); });
}

void norm_up_backward(const Context& c, const at::Tensor& d_up, const at::Tensor& mid, const NormSaved& saved,
                      const NormWeights& norm, const Linear& up, at::Tensor& d_x, NormWeights& d_norm, Linear& d_w) {
  run(
      c, [&](const auto& k) { norm_linear_backward(k, c, d_up, mid, saved, norm, up, d_x, d_norm, d_w); },
      [&] { aten::norm_linear_backward(c, d_up, mid, saved, norm, up, d_x, d_norm, d_w); });
}

void activation_forward(const Context& c, const at::Tensor& up, at::Tensor& a) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (c.arch.activation == Activation::kSwiGlu)
          k.swiglu_forward(a.size(0), a.size(1), pointer<T>(up), pointer<T>(a));
        else
          k.gelu_tanh_forward(a.numel(), pointer<T>(up), pointer<T>(a));
      },
      [&] { aten::activation_forward(c, up, a); });
}

void activation_backward(const Context& c, const at::Tensor& d_a, const at::Tensor& up, at::Tensor& d_up) {
  check_whole(c, arch::Part::kActivation);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        if (c.arch.activation == Activation::kSwiGlu)
          k.swiglu_backward(d_a.size(0), d_a.size(1), pointer<T>(d_a), pointer<T>(up), pointer<T>(d_up));
        else
          k.gelu_tanh_backward(d_a.numel(), pointer<T>(d_a), pointer<T>(up), pointer<T>(d_up));
      },
      [&] { aten::activation_backward(c, d_a, up, d_up); });
}

void down_forward(const Context& c, const at::Tensor& a, const at::Tensor& mid, const Linear& down, at::Tensor& y) {
  output_projection_forward(c, a, mid, down, y);  // same as there: y = residual + x W^T + b
}

void down_backward(const Context& c, const at::Tensor& d_x, const at::Tensor& a, const Linear& down, at::Tensor& d_a,
                   Linear& d_down) {
  output_projection_backward(c, d_x, a, down, d_a, d_down);
}

void final_norm_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, NormSaved& saved,
                        at::Tensor& y) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.norm_forward(x.size(0), x.size(1), c.arch.norm_eps, pointer<T>(x), pointers<T>(norm, saved), pointer<T>(y));
      },
      [&] { aten::norm_forward(c, x, norm, saved, y); });
}

void final_norm_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                         const NormWeights& norm, at::Tensor& d_x, NormWeights& d_norm) {
  check_whole(c, arch::Part::kFinalNorm);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.norm_backward(x.size(0), x.size(1), pointer<T>(d_y), pointer<T>(x), pointers<T>(norm, saved), false,
                        pointer<T>(d_x), c.accumulate, pointer<T>(d_norm.weight_d), pointer<T>(d_norm.bias_d),
                        c.scratch);
      },
      [&] { aten::norm_backward(c, d_y, x, saved, norm, false, d_x, d_norm); });
}

void head_loss(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
               double grad_scale, at::Tensor& losses, at::Tensor& d_y, at::Tensor& d_head) {
  check_whole(c, arch::Part::kHead);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const std::int32_t* label = checked_ids(labels, -1, vocabulary);
        T* logits = c.scratch.template take<T>(rows * vocabulary);
        k.matmul_nt(rows, vocabulary, d, pointer<T>(y), pointer<T>(head), false, logits);
        k.cross_entropy(rows, vocabulary, label, true, grad_scale, logits, pointer<T>(losses));
        k.matmul_nn(rows, d, vocabulary, logits, pointer<T>(head), false, pointer<T>(d_y));
        k.matmul_tn(vocabulary, d, rows, logits, pointer<T>(y), c.accumulate, pointer<T>(d_head));
      },
      [&] { aten::head_loss(c, y, labels, head, grad_scale, losses, d_y, d_head); });
}

void head_logits_sums(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                      at::Tensor& logits, at::Tensor& sums) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), vocabulary = head.size(0);
        k.matmul_nt(rows, vocabulary, y.size(1), pointer<T>(y), pointer<T>(head), false, pointer<T>(logits));
        k.shared_sums(rows, vocabulary, c.share.vocabulary_first, checked_ids(labels, -1, c.share.vocabulary_all),
                      pointer<T>(logits), pointer<T>(sums));
      },
      [&] { aten::head_logits_sums(c, y, labels, head, logits, sums); });
}

void head_shared_loss(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        combine_sums<T>(c, sums, losses.size(0), checked_ids(labels, -1, c.share.vocabulary_all), pointer<T>(losses),
                        nullptr);
      },
      [&] { aten::head_shared_loss(c, sums, labels, losses); });
}

void head_shared_gradient(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& logits,
                          const at::Tensor& y, const at::Tensor& head, double grad_scale, at::Tensor& losses,
                          at::Tensor& d_y, at::Tensor& d_head) {
  check_whole(c, arch::Part::kHeadLoss);
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const auto t = row_targets<T>(c, sums, labels, vocabulary, grad_scale, losses);
        k.shared_gradient(rows, vocabulary, t.column, t.lse, t.scale, pointer<T>(logits));
        k.matmul_nn(rows, d, vocabulary, pointer<T>(logits), pointer<T>(head), false, pointer<T>(d_y));
        k.matmul_tn(vocabulary, d, rows, pointer<T>(logits), pointer<T>(y), c.accumulate, pointer<T>(d_head));
      },
      [&] { aten::head_shared_gradient(c, sums, labels, logits, y, head, grad_scale, losses, d_y, d_head); });
}

void head_loss_forward(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                       at::Tensor& losses) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        const i64 rows = y.size(0), d = y.size(1), vocabulary = head.size(0);
        const std::int32_t* label = checked_ids(labels, -1, vocabulary);
        T* logits = c.scratch.template take<T>(rows * vocabulary);
        k.matmul_nt(rows, vocabulary, d, pointer<T>(y), pointer<T>(head), false, logits);
        k.cross_entropy(rows, vocabulary, label, false, 1.0, logits, pointer<T>(losses));
      },
      [&] { aten::head_loss_forward(c, y, labels, head, losses); });
}

void head_logits(const Context& c, const at::Tensor& y, const at::Tensor& head, at::Tensor& logits) {
  run(
      c,
      [&](const auto& k) {
        using T = RealOf<std::decay_t<decltype(k)>>;
        k.matmul_nt(y.size(0), head.size(0), y.size(1), pointer<T>(y), pointer<T>(head), false, pointer<T>(logits));
      },
      [&] { aten::head_logits(c, y, head, logits); });
}

}  // namespace molen::model
