// Selects the implementation of causal attention by name (program/parts/attention.cpp declares the names), and
// implements unfused attention on the host, which keeps the scores of a head as a matrix. On devices it is that of
// device_attention.h with written-out scores.
#include <omp.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "model/aten_temporaries.h"
#include "model/context.h"
#include "model/kernels.h"
#include "model/parts_aten.h"

namespace molen::model {
namespace {

// Attention of one head after another, in T, which is fp32 or wider. Each head is copied to contiguous rows, its scores
// are an S x S matrix, and the products are those of the matrix library.
template <class T>
class Unfused {
 public:
  Unfused(const Context& c, const at::Tensor& qkv)
      : c_(c), rows_(c.shape.sequence), width_(c.arch.head_dim), slopes_(slopes_of<T>(c)), like_(qkv) {
    MOLEN_CHECK(c.positions.empty() && qkv.device().is_cpu(), "unfused attention has whole sequences on the host");
  }

  void forward(const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) const {
    const math::Rewind rewind(c_.scratch);
    at::Tensor q = head(), k = head(), v = head(), sum = head(), scores = matrix();
    for (i64 b = 0; b < c_.shape.batch; ++b)
      for (i64 h = 0; h < c_.arch.heads; ++h) {
        if (h % group() == 0) k.copy_(columns(qkv, b, key(h))), v.copy_(columns(qkv, b, value(h)));
        q.copy_(columns(qkv, b, h));
        times_transposed(q, k, scores);
        soften(b, h, scores, lse.data_ptr<T>() + (b * c_.arch.heads + h) * rows_);
        times(scores, v, sum);
        columns(o, b, h).copy_(sum);
      }
  }

  void backward(const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o, const at::Tensor& lse,
                at::Tensor& d_qkv) const {
    const math::Rewind rewind(c_.scratch);
    at::Tensor q = head(), k = head(), v = head(), g = head(), out = head(), d_q = head(), d_k = head(), d_v = head();
    at::Tensor scores = matrix(), d_scores = matrix();
    for (i64 b = 0; b < c_.shape.batch; ++b)
      for (i64 h = 0; h < c_.arch.heads; ++h) {
        if (h % group() == 0) {
          k.copy_(columns(qkv, b, key(h))), v.copy_(columns(qkv, b, value(h)));
          d_k.zero_(), d_v.zero_();
        }
        q.copy_(columns(qkv, b, h)), g.copy_(columns(d_o, b, h)), out.copy_(columns(o, b, h));
        times_transposed(q, k, scores);
        soften_again(b, h, scores, lse.data_ptr<T>() + (b * c_.arch.heads + h) * rows_);
        add_transposed_times(scores, g, d_v);
        times_transposed(g, v, d_scores);
        gradient_of_scores(g, out, scores, d_scores);
        times(d_scores, k, d_q);
        add_transposed_times(d_scores, q, d_k);
        columns(d_qkv, b, h).copy_(d_q);
        if ((h + 1) % group() == 0) columns(d_qkv, b, key(h)).copy_(d_k), columns(d_qkv, b, value(h)).copy_(d_v);
      }
  }

 private:
  static constexpr auto kType = std::is_same_v<T, double> ? at::kDouble : at::kFloat;
  i64 group() const { return c_.arch.heads / c_.arch.kv_heads; }
  i64 key(i64 head) const { return c_.arch.heads + head / group(); }
  i64 value(i64 head) const { return key(head) + c_.arch.kv_heads; }
  at::Tensor head() const { return aten::temporary(c_, like_, kType, {rows_, width_}); }
  at::Tensor matrix() const { return aten::temporary(c_, like_, kType, {rows_, rows_}); }
  // Returns the columns of one head in the rows of one sequence.
  at::Tensor columns(const at::Tensor& rows, i64 b, i64 head) const {
    return rows.narrow(0, b * rows_, rows_).narrow(1, head * width_, width_);
  }

  // Products of heads [S, D] and scores [S, S]: a b^T, a b, and out + a^T b. In fp32 they use the library of
  // math/gemm.h.
  void times_transposed(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) const {
    if constexpr (std::is_same_v<T, float>)
      return math::matmul_nt(rows_, rows_, width_, pointer<T>(a), pointer<T>(b), false, pointer<T>(out));
    const math::LibraryCall call;
    at::mm_out(out, a, b.t());
  }
  void times(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) const {
    if constexpr (std::is_same_v<T, float>)
      return math::matmul_nn(rows_, width_, rows_, pointer<T>(a), pointer<T>(b), false, pointer<T>(out));
    const math::LibraryCall call;
    at::mm_out(out, a, b);
  }
  void add_transposed_times(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) const {
    if constexpr (std::is_same_v<T, float>)
      return math::matmul_tn(rows_, width_, rows_, pointer<T>(a), pointer<T>(b), true, pointer<T>(out));
    const math::LibraryCall call;
    at::addmm_out(out, out, a.t(), b);
  }

  // Returns the first key that a row sees.
  i64 first_of(i64 b, i64 row) const {
    return c_.document_start ? c_.document_start->data_ptr<std::int32_t>()[b * rows_ + row] : 0;
  }
  T scale() const { return static_cast<T>(1.0 / std::sqrt(static_cast<double>(width_))); }
  T slope(i64 h) const { return slopes_.empty() ? T(0) : slopes_[static_cast<std::size_t>(h)]; }

  // Turns products of queries and keys into probabilities, and leaves the logarithm of each row's sum.
  void soften(i64 b, i64 h, at::Tensor& scores, T* sums) const {
    each_row(scores, [&, scale = scale(), slope = slope(h)](i64 i, T* row) {
      const i64 first = first_of(b, i);
      T top = -std::numeric_limits<T>::infinity(), sum = 0;
      for (i64 j = first; j <= i; ++j) {
        row[j] = row[j] * scale + slope * static_cast<T>(j - i);
        top = row[j] > top ? row[j] : top;
      }
      for (i64 j = first; j <= i; ++j) sum += row[j] = std::exp(row[j] - top);
      sums[i] = top + std::log(sum);
      for (i64 j = 0; j < rows_; ++j) row[j] = first <= j && j <= i ? row[j] / sum : T(0);
    });
  }
  // Turns products of queries and keys into probabilities, from the known logarithms of the rows' sums.
  void soften_again(i64 b, i64 h, at::Tensor& scores, const T* sums) const {
    each_row(scores, [&, scale = scale(), slope = slope(h)](i64 i, T* row) {
      const i64 first = first_of(b, i);
      for (i64 j = 0; j < rows_; ++j)
        row[j] = first <= j && j <= i ? std::exp(row[j] * scale + slope * static_cast<T>(j - i) - sums[i]) : T(0);
    });
  }

  // Turns the gradient of the probabilities into the gradient of the products of queries and keys: P (dP - sum of d_o
  // o) / sqrt(D).
  void gradient_of_scores(const at::Tensor& g, const at::Tensor& out, const at::Tensor& probabilities,
                          at::Tensor& d) const {
    const T *p = pointer<T>(probabilities), *g_rows = pointer<T>(g), *o_rows = pointer<T>(out);
    each_row(d, [&, scale = scale()](i64 i, T* row) {
      T dot = 0;
      for (i64 x = 0; x < width_; ++x) dot += g_rows[i * width_ + x] * o_rows[i * width_ + x];
      for (i64 j = 0; j < rows_; ++j) row[j] = p[i * rows_ + j] * (row[j] - dot) * scale;
    });
  }

  // Calls f for each row; a row's result does not depend on the number of threads.
  template <class F>
  void each_row(at::Tensor& matrix, const F& f) const {
    T* rows = pointer<T>(matrix);
#pragma omp parallel for num_threads(std::max(c_.shape.threads, 1)) schedule(static)
    for (i64 i = 0; i < rows_; ++i) f(i, rows + i * rows_);
  }

  const Context& c_;
  i64 rows_, width_;
  std::vector<T> slopes_;
  const at::Tensor& like_;
};

bool unfused_on_host(const Context& c, const at::Tensor& qkv) {
  return c.shape.kernels == kUnfused && qkv.device().is_cpu();
}

// Calls f with unfused attention in the type that accumulates values of the tensor's type.
template <class F>
void with_unfused(const Context& c, const at::Tensor& qkv, const F& f) {
  if (qkv.scalar_type() == at::kDouble)
    f(Unfused<double>(c, qkv));
  else
    f(Unfused<float>(c, qkv));
}

}  // namespace

void attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  if (unfused_on_host(c, qkv)) return with_unfused(c, qkv, [&](const auto& unfused) { unfused.forward(qkv, o, lse); });
  if (c.document_start || !c.positions.empty() || c.shape.kernels == kUnfused)
    return document_attention_forward(c, qkv, o, lse);
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
  if (unfused_on_host(c, qkv))
    return with_unfused(c, qkv, [&](const auto& unfused) { unfused.backward(d_o, qkv, o, lse, d_qkv); });
  if (c.document_start || !c.positions.empty() || c.shape.kernels == kUnfused)
    return document_attention_backward(c, d_o, qkv, o, lse, d_qkv);
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
