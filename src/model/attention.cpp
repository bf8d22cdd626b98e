// The implementations of causal attention, by name (program/parts/attention.cpp declares them), and the one that keeps
// the scores of a head as a matrix.
#include <ATen/Parallel.h>

#include <cmath>

#include "model/aten_temporaries.h"
#include "model/context.h"
#include "model/kernels.h"
#include "model/parts_aten.h"

namespace molen::model {
namespace {

constexpr Kernels kUnfused{"unfused"};

// Attention of one head after another. Each head is copied to contiguous rows of at least fp32, its scores are the
// matrix S x S, and the products are those of the matrix library.
class Unfused {
 public:
  Unfused(const Context& c, const at::Tensor& qkv)
      : c_(c), type_(aten::accurate(qkv)), rows_(c.shape.sequence), width_(c.arch.head_dim), like_(qkv) {
    MOLEN_CHECK(c.positions.empty() && qkv.device().is_cpu(), "unfused attention has whole sequences on the host");
  }

  void forward(const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) const {
    const math::Rewind rewind(c_.scratch);
    at::Tensor q = head(), k = head(), v = head(), sum = head(), scores = matrix();
    for (i64 b = 0; b < c_.shape.batch; ++b)
      for (i64 h = 0; h < c_.arch.heads; ++h) {
        if (h % group() == 0) k.copy_(columns(qkv, b, key(h))), v.copy_(columns(qkv, b, value(h)));
        q.copy_(columns(qkv, b, h));
        product(scores, q, k.t());
        dispatch([&](auto real) { soften<decltype(real)>(b, h, scores, lse, false); });
        product(sum, scores, v);
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
        product(scores, q, k.t());
        at::Tensor sums = lse;  // read alone
        dispatch([&](auto real) { soften<decltype(real)>(b, h, scores, sums, true); });
        add_product(d_v, scores.t(), g);
        product(d_scores, g, v.t());
        dispatch([&](auto real) { gradient_of_scores<decltype(real)>(g, out, scores, d_scores); });
        product(d_q, d_scores, k);
        add_product(d_k, d_scores.t(), q);
        columns(d_qkv, b, h).copy_(d_q);
        if ((h + 1) % group() == 0) columns(d_qkv, b, key(h)).copy_(d_k), columns(d_qkv, b, value(h)).copy_(d_v);
      }
  }

 private:
  i64 group() const { return c_.arch.heads / c_.arch.kv_heads; }
  i64 key(i64 head) const { return c_.arch.heads + head / group(); }
  i64 value(i64 head) const { return key(head) + c_.arch.kv_heads; }
  at::Tensor head() const { return aten::temporary(c_, like_, type_, {rows_, width_}); }
  at::Tensor matrix() const { return aten::temporary(c_, like_, type_, {rows_, rows_}); }
  // Returns the columns of one head in the rows of one sequence.
  at::Tensor columns(const at::Tensor& rows, i64 b, i64 head) const {
    return rows.narrow(0, b * rows_, rows_).narrow(1, head * width_, width_);
  }
  static void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    const math::LibraryCall call;
    at::mm_out(out, a, b);
  }
  static void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
    const math::LibraryCall call;
    at::addmm_out(sum, sum, a, b);
  }
  template <class F>
  void dispatch(const F& f) const {
    if (type_ == at::kDouble) return f(0.0);
    f(0.0F);
  }

  // Turns products of queries and keys into probabilities. With `again`, the sums are read, not written.
  template <class T>
  void soften(i64 b, i64 h, at::Tensor& scores, at::Tensor& lse, bool again) const {
    const std::vector<T> slopes = slopes_of<T>(c_);
    const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(width_)));
    const T slope = slopes.empty() ? T(0) : slopes[static_cast<std::size_t>(h)];
    T* sums = lse.data_ptr<T>() + (b * c_.arch.heads + h) * rows_;
    const auto* starts = c_.document_start ? c_.document_start->data_ptr<std::int32_t>() + b * rows_ : nullptr;
    each_row(scores.data_ptr<T>(), [&](i64 i, T* row) {
      const i64 first = starts ? starts[i] : 0;
      T top = -std::numeric_limits<T>::infinity();
      for (i64 j = first; j <= i; ++j) {
        row[j] = row[j] * scale + slope * static_cast<T>(j - i);
        top = row[j] > top ? row[j] : top;
      }
      if (!again) {
        T sum = 0;
        for (i64 j = first; j <= i; ++j) sum += std::exp(row[j] - top);
        sums[i] = top + std::log(sum);
      }
      for (i64 j = 0; j < rows_; ++j) row[j] = first <= j && j <= i ? std::exp(row[j] - sums[i]) : T(0);
    });
  }

  // Turns the gradient of the probabilities into that of the products of queries and keys: P (dP - sum of d_o o) /
  // sqrt(D).
  template <class T>
  void gradient_of_scores(const at::Tensor& g, const at::Tensor& out, const at::Tensor& probabilities,
                          at::Tensor& d) const {
    const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(width_)));
    const T *p = probabilities.data_ptr<T>(), *g_rows = g.data_ptr<T>(), *o_rows = out.data_ptr<T>();
    each_row(d.data_ptr<T>(), [&](i64 i, T* row) {
      T dot = 0;
      for (i64 x = 0; x < width_; ++x) dot += g_rows[i * width_ + x] * o_rows[i * width_ + x];
      for (i64 j = 0; j < rows_; ++j) row[j] = p[i * rows_ + j] * (row[j] - dot) * scale;
    });
  }

  template <class T, class F>
  void each_row(T* matrix, const F& f) const {
    at::parallel_for(0, rows_, 16, [&](i64 first, i64 last) {
      for (i64 i = first; i < last; ++i) f(i, matrix + i * rows_);
    });
  }

  const Context& c_;
  at::ScalarType type_;
  i64 rows_, width_;
  const at::Tensor& like_;
};

}  // namespace

void attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  if (c.shape.kernels == kUnfused) return Unfused(c, qkv).forward(qkv, o, lse);
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
  if (c.shape.kernels == kUnfused) return Unfused(c, qkv).backward(d_o, qkv, o, lse, d_qkv);
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
