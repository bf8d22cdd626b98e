#include "model/context.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "arch/context_parallel.h"
#include "math/context_attention.h"
#include "math/reference_context.h"
#include "model/device_attention.h"
#include "model/tensor_slice.h"

namespace molen::model {
namespace {

using arch::Kernels;
using math::Rewind;
using i64 = std::int64_t;
using Runs = std::span<const PositionRun>;

bool low_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

// Returns the tensor in fp32, from the op's scratch when its type is narrower. With `fill`, the values are copied.
at::Tensor widened(const Context& c, const at::Tensor& t, bool fill = true) {
  if (!low_precision(t)) return t;
  at::Tensor wide = at::from_blob(c.scratch.take_bytes(t.numel() * 4), t.sizes(), t.options().dtype(at::kFloat));
  if (fill) wide.copy_(t);
  return wide;
}

// Returns the host data of rows whose elements are adjacent.
template <class T>
T* rows(const at::Tensor& t) {
  MOLEN_CHECK(t.dim() == 2 && (t.stride(1) == 1 || t.size(1) == 1) && t.device().is_cpu(),
              "an operand of attention is not rows in CPU memory");
  return t.data_ptr<T>();
}
template <class T>
T* dense(const at::Tensor& t) {
  MOLEN_CHECK(t.is_contiguous() && t.device().is_cpu(), "an operand of attention is not contiguous CPU memory");
  return t.data_ptr<T>();
}
i64 stride_of(const at::Tensor& t) {
  return t.stride(0);
}

// The inputs and outputs of one call, with all tensors in the type that the kernels take.
struct Call {
  const Context& c;
  Runs queries, keys;
  i64 k_columns() const { return c.arch.kv_heads * c.arch.head_dim; }
  const std::int32_t* starts() const {
    if (!c.document_start) return nullptr;
    MOLEN_CHECK(c.document_start->numel() == c.shape.tokens(), "{} document starts for {} rows",
                c.document_start->numel(), c.shape.tokens());
    return dense<std::int32_t>(*c.document_start);
  }
  int threads() const { return std::max(c.shape.threads, 1); }
};

void check(const Context& c, Runs queries, Runs keys, const at::Tensor& qkv, const at::Tensor& kv) {
  MOLEN_CHECK(count_positions(queries) == c.shape.sequence && qkv.size(0) == c.shape.tokens(),
              "attention of {} rows in {} sequences of {}, at {} positions", qkv.size(0), c.shape.batch,
              c.shape.sequence, count_positions(queries));
  MOLEN_CHECK(
      kv.size(0) == c.shape.batch * count_positions(keys) && kv.size(1) == 2 * c.arch.kv_heads * c.arch.head_dim,
      "attention over {} rows of {} values for keys at {} positions of {} sequences", kv.size(0), kv.size(1),
      count_positions(keys), c.shape.batch);
}

template <class T>
math::reference::ContextSizes sizes(const Call& x) {
  const auto& a = x.c.arch;
  math::check_starts(x.c.shape.batch, x.queries, x.starts());
  return {x.c.shape.batch, a.heads, a.kv_heads, a.head_dim, x.queries, x.keys, x.starts()};
}

template <class T>
void reference_forward(const Call& x, const at::Tensor& q, const at::Tensor& kv, bool first, const at::Tensor& o,
                       const at::Tensor& lse) {
  const std::vector<double> slopes = slopes_of<double>(x.c);
  math::reference::context_forward<T>(
      x.threads(), sizes<T>(x), slopes.empty() ? nullptr : slopes.data(),
      {rows<T>(q), stride_of(q), rows<T>(kv), rows<T>(kv) + x.k_columns(), stride_of(kv)}, first, dense<T>(o),
      dense<T>(lse), x.c.scratch);
}
template <class T>
void reference_backward(const Call& x, const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& kv,
                        const at::Tensor& o, const at::Tensor& lse, bool add_q, bool add_kv, const at::Tensor& d_q,
                        const at::Tensor& d_kv) {
  const std::vector<double> slopes = slopes_of<double>(x.c);
  math::reference::context_backward<T>(
      x.threads(), sizes<T>(x), slopes.empty() ? nullptr : slopes.data(), dense<T>(d_o),
      {rows<T>(q), stride_of(q), rows<T>(kv), rows<T>(kv) + x.k_columns(), stride_of(kv)}, dense<T>(o), dense<T>(lse),
      add_q, add_kv, {rows<T>(d_q), stride_of(d_q), rows<T>(d_kv), rows<T>(d_kv) + x.k_columns(), stride_of(d_kv)},
      x.c.scratch);
}

math::ContextShape fused_shape(const Call& x, const std::vector<float>& slopes) {
  math::ContextShape s;
  s.B = x.c.shape.batch, s.h = x.c.arch.heads, s.k = x.c.arch.kv_heads, s.D = x.c.arch.head_dim;
  s.queries = x.queries, s.keys = x.keys, s.starts = x.starts(), s.threads = x.threads();
  s.alibi = slopes.empty() ? nullptr : slopes.data();
  return s;
}
math::ContextOperands operands(const Call& x, const at::Tensor& q, const at::Tensor& kv) {
  return {rows<float>(q), stride_of(q), rows<float>(kv), rows<float>(kv) + x.k_columns(), stride_of(kv)};
}
void fused_forward(const Call& x, const at::Tensor& q, const at::Tensor& kv, bool first, const at::Tensor& o,
                   const at::Tensor& lse) {
  const std::vector<float> slopes = slopes_of<float>(x.c);
  const math::ContextShape s = fused_shape(x, slopes);
  math::context_forward(s, operands(x, q, kv), first, dense<float>(o), dense<float>(lse),
                        x.c.scratch.take_bytes(math::context_forward_scratch(s)));
}
void fused_backward(const Call& x, const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& kv,
                    const at::Tensor& o, const at::Tensor& lse, bool add_q, bool add_kv, const at::Tensor& d_q,
                    const at::Tensor& d_kv) {
  const std::vector<float> slopes = slopes_of<float>(x.c);
  const math::ContextShape s = fused_shape(x, slopes);
  math::context_backward(s, dense<float>(d_o), operands(x, q, kv), dense<float>(o), dense<float>(lse),
                         {rows<float>(d_q), stride_of(d_q), add_q, rows<float>(d_kv), rows<float>(d_kv) + x.k_columns(),
                          stride_of(d_kv), add_kv},
                         x.c.scratch.take_bytes(math::context_backward_scratch(s)));
}

// Selects the kernels by the rule that arch::context_attention_cost uses.
enum class Way { kReference64, kReference32, kFused };
Way way_of(const Context& c) {
  const bool aten = c.shape.kernels == Kernels::kAten, f64 = c.shape.compute == DType::kF64;
  if (!aten && !f64 && c.shape.compute != DType::kF32)
    throw Error("the reference and fused kernels do not compute in {}", name_of(c.shape.compute));
  if (f64 && c.shape.kernels == Kernels::kFused) throw Error("the fused kernels compute in fp32, not in fp64");
  if (f64) return Way::kReference64;
  return c.shape.kernels == Kernels::kReference || c.arch.head_dim > arch::kOwnAttentionMaxHead ? Way::kReference32
                                                                                                : Way::kFused;
}

void forward(const Call& x, const at::Tensor& q, const at::Tensor& kv, bool first, const at::Tensor& o,
             const at::Tensor& lse) {
  switch (way_of(x.c)) {
    case Way::kReference64:
      return reference_forward<double>(x, q, kv, first, o, lse);
    case Way::kReference32:
      return reference_forward<float>(x, q, kv, first, o, lse);
    case Way::kFused:
      return fused_forward(x, q, kv, first, o, lse);
  }
}
void backward(const Call& x, const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& o,
              const at::Tensor& lse, bool add_q, bool add_kv, const at::Tensor& d_q, const at::Tensor& d_kv) {
  switch (way_of(x.c)) {
    case Way::kReference64:
      return reference_backward<double>(x, d_o, q, kv, o, lse, add_q, add_kv, d_q, d_kv);
    case Way::kReference32:
      return reference_backward<float>(x, d_o, q, kv, o, lse, add_q, add_kv, d_q, d_kv);
    case Way::kFused:
      return fused_backward(x, d_o, q, kv, o, lse, add_q, add_kv, d_q, d_kv);
  }
}

// Returns the rank's runs of positions. Without any, returns the whole sequence, which it stores in `whole`.
Runs queries_of(const Context& c, PositionRun& whole) {
  whole = {0, c.shape.sequence};
  return c.positions.empty() ? Runs(&whole, 1) : c.positions;
}

at::Tensor query_columns(const Context& c, const at::Tensor& qkv) {
  return qkv.narrow(1, 0, c.arch.query_size());
}

}  // namespace

at::Tensor key_value_columns(const Context& c, const at::Tensor& qkv) {
  return qkv.narrow(1, c.arch.query_size(), 2 * c.arch.kv_heads * c.arch.head_dim);
}

void context_attention_forward(const Context& c, const at::Tensor& qkv, const at::Tensor& kv,
                               std::span<const PositionRun> keys, bool first, at::Tensor& o, at::Tensor& lse) {
  PositionRun whole;
  const Runs queries = queries_of(c, whole);
  check(c, queries, keys, qkv, kv);
  if (!qkv.device().is_cpu())
    return aten::device_attention_forward(aten::attention_backend(c, qkv.is_cuda(), qkv.scalar_type()), c, queries, qkv,
                                          kv, keys, first, o, lse);
  const Rewind rewind(c.scratch);
  const at::Tensor q = widened(c, query_columns(c, qkv)), k = widened(c, kv), out = widened(c, o, !first);
  forward({c, queries, keys}, q, k, first, out, lse);
  if (low_precision(o)) o.copy_(out);
}

void context_attention_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& kv,
                                std::span<const PositionRun> keys, const at::Tensor& o, const at::Tensor& lse,
                                bool add_q, bool add_kv, at::Tensor& d_qkv, at::Tensor& d_kv) {
  PositionRun whole;
  const Runs queries = queries_of(c, whole);
  check(c, queries, keys, qkv, kv);
  if (!qkv.device().is_cpu())
    return aten::device_attention_backward(aten::attention_backend(c, qkv.is_cuda(), qkv.scalar_type()), c, queries,
                                           d_o, qkv, kv, keys, o, lse, add_q, add_kv, d_qkv, d_kv);
  const Rewind rewind(c.scratch);
  const at::Tensor d_queries = query_columns(c, d_qkv);
  const at::Tensor g = widened(c, d_o), q = widened(c, query_columns(c, qkv)), k = widened(c, kv), out = widened(c, o),
                   d_q = widened(c, d_queries, add_q), d_k = widened(c, d_kv, add_kv);
  backward({c, queries, keys}, g, q, k, out, lse, add_q, add_kv, d_q, d_k);
  if (low_precision(d_queries)) d_queries.copy_(d_q);
  if (low_precision(d_kv)) d_kv.copy_(d_k);
}

void document_attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  PositionRun whole;
  const Runs queries = queries_of(c, whole);
  const Rewind rewind(c.scratch);
  // all columns are widened, as without documents
  const at::Tensor wide = qkv.device().is_cpu() ? widened(c, qkv) : qkv;
  context_attention_forward(c, wide, key_value_columns(c, wide), queries, true, o, lse);
}

void document_attention_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                                 const at::Tensor& lse, at::Tensor& d_qkv) {
  PositionRun whole;
  const Runs queries = queries_of(c, whole);
  const Rewind rewind(c.scratch);
  const bool host = qkv.device().is_cpu();
  const at::Tensor wide = host ? widened(c, qkv) : qkv;
  at::Tensor d_wide = host ? widened(c, d_qkv, false) : d_qkv, d_kv = key_value_columns(c, d_wide);
  context_attention_backward(c, d_o, wide, key_value_columns(c, wide), queries, o, lse, false, false, d_wide, d_kv);
  if (host && low_precision(d_qkv)) d_qkv.copy_(d_wide);
}

void take_rows(std::int64_t batch, std::span<const PositionRun> runs, const at::Tensor& all, at::Tensor& rows) {
  const i64 sequence = all.size(0) / batch;
  MOLEN_CHECK(all.size(0) % batch == 0 && rows.size(0) == batch * count_positions(runs) && in_order(runs, sequence),
              "{} rows of {} sequences that have {} in all", rows.size(0), batch, all.size(0));
  i64 row = 0;
  for (i64 b = 0; b < batch; ++b)
    for (const PositionRun& run : runs) {
      rows.narrow(0, row, run.size()).copy_(all.narrow(0, b * sequence + run.first, run.size()));
      row += run.size();
    }
}

}  // namespace molen::model
