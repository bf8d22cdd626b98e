#include "model/device_documents.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "model/aten_temporaries.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;

// Returns columns [first, first + heads * D) of rows as [N, heads, D], a view.
at::Tensor heads_in(const at::Tensor& rows, i64 first, i64 heads, i64 D) {
  return rows.narrow(1, first, heads * D).unflatten(1, {heads, D});
}

// Returns lse of [B, h, S] as [h, N]; its inverse is by_sequence.
at::Tensor by_head(const at::Tensor& lse) {
  return lse.transpose(0, 1).reshape({lse.size(1), -1});
}
at::Tensor by_sequence(const at::Tensor& lse, i64 batch) {
  return lse.unflatten(1, {batch, -1}).transpose(0, 1);
}

// All documents of a micro-batch as one batch of flash attention.
class Documents {
 public:
  Documents(const Context& c, const at::Tensor& qkv, const at::Tensor& kv)
      : rows_(qkv.size(0)),
        longest_(c.shape.sequence),
        scale_(1.0 / std::sqrt(static_cast<double>(c.arch.head_dim))),
        q_(heads_in(qkv, 0, c.arch.heads, c.arch.head_dim)),
        k_(heads_in(kv, 0, c.arch.kv_heads, c.arch.head_dim)),
        v_(heads_in(kv, c.arch.kv_heads * c.arch.head_dim, c.arch.kv_heads, c.arch.head_dim)) {
    MOLEN_CHECK(c.document_start && c.document_start->numel() == rows_ && rows_ == c.shape.batch * longest_ &&
                    kv.size(0) == rows_,
                "flash attention within documents: {} rows of {} sequences of {}", rows_, c.shape.batch, longest_);
    const at::Tensor place = at::arange(longest_, c.document_start->options()).repeat({c.shape.batch});
    const at::Tensor first = at::nonzero(c.document_start->flatten().eq(place)).flatten();
    bounds_ = at::cat({first, at::full({1}, rows_, first.options())}).to(at::kInt);
  }

  // Returns o [N, h, D] and lse [h, N].
  std::pair<at::Tensor, at::Tensor> forward() const {
    if (!q_.device().is_cpu()) {
      const auto result =
          at::_flash_attention_forward(q_, k_, v_, bounds_, bounds_, longest_, longest_, 0.0, true, false, scale_);
      return {std::get<0>(result), std::get<1>(result)};
    }
    std::vector<at::Tensor> o, lse;
    for (const auto& [first, rows] : each()) {
      const auto [part, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          sequence(q_, first, rows), sequence(k_, first, rows), sequence(v_, first, rows), 0.0, true, {}, scale_);
      o.push_back(part.squeeze(0).transpose(0, 1)), lse.push_back(sums.squeeze(0));
    }
    return {at::cat(o), at::cat(lse, 1)};
  }

  // Takes d_o and o [N, h, D], lse [h, N]; returns the gradients of q [N, h, D], k and v [N, kv, D].
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& d_o, const at::Tensor& o,
                                                          const at::Tensor& lse) const {
    if (!q_.device().is_cpu()) {
      const at::Tensor none, rng = at::zeros({2}, at::TensorOptions().dtype(at::kLong).device(q_.device()));
      return at::_flash_attention_backward(d_o, q_, k_, v_, o, lse, bounds_, bounds_, longest_, longest_, 0.0, true,
                                           rng, none, scale_);
    }
    std::vector<at::Tensor> d_q, d_k, d_v;
    for (const auto& [first, rows] : each()) {
      const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          sequence(d_o, first, rows), sequence(q_, first, rows), sequence(k_, first, rows), sequence(v_, first, rows),
          sequence(o, first, rows), lse.narrow(1, first, rows).unsqueeze(0), 0.0, true, {}, scale_);
      for (const auto& [all, part] : {std::pair{&d_q, q}, {&d_k, k}, {&d_v, v}})
        all->push_back(part.squeeze(0).transpose(0, 1));
    }
    return {at::cat(d_q), at::cat(d_k), at::cat(d_v)};
  }

 private:
  // First row and number of rows of each document.
  std::vector<std::pair<i64, i64>> each() const {
    std::vector<std::pair<i64, i64>> all;
    const auto* bounds = bounds_.const_data_ptr<std::int32_t>();
    for (i64 d = 0; d + 1 < bounds_.numel(); ++d) all.emplace_back(bounds[d], bounds[d + 1] - bounds[d]);
    return all;
  }
  // Returns rows of [N, heads, D] as [1, heads, rows, D].
  static at::Tensor sequence(const at::Tensor& all, i64 first, i64 rows) {
    return all.narrow(0, first, rows).transpose(0, 1).unsqueeze(0);
  }

  i64 rows_, longest_;
  double scale_;
  at::Tensor q_, k_, v_;  // [N, h, D], [N, kv, D]: views of the operands
  at::Tensor bounds_;     // i32: the first row of each document, then N
};

}  // namespace

void document_flash_forward(const Context& c, const at::Tensor& qkv, const at::Tensor& kv, at::Tensor& o,
                            at::Tensor& lse) {
  const auto [result, sums] = Documents(c, qkv, kv).forward();
  heads_in(o, 0, c.arch.heads, c.arch.head_dim).copy_(result);
  lse.copy_(by_sequence(sums, c.shape.batch));
}

void document_flash_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& kv,
                             const at::Tensor& o, const at::Tensor& lse, bool add_q, bool add_kv, at::Tensor& d_qkv,
                             at::Tensor& d_kv) {
  const i64 h = c.arch.heads, kv_heads = c.arch.kv_heads, D = c.arch.head_dim;
  const at::ScalarType type = qkv.scalar_type();
  const auto [d_q, d_k, d_v] =
      Documents(c, qkv, kv).backward(heads_in(d_o, 0, h, D).to(type), heads_in(o, 0, h, D).to(type), by_head(lse));
  at::Tensor to_q = heads_in(d_qkv, 0, h, D), to_k = heads_in(d_kv, 0, kv_heads, D),
             to_v = heads_in(d_kv, kv_heads * D, kv_heads, D);
  add_into(add_q, to_q, d_q), add_into(add_kv, to_k, d_k), add_into(add_kv, to_v, d_v);
}

}  // namespace molen::model::aten
