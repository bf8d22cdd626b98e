#include "model/context_aten.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "model/share.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;
constexpr double kNone = -std::numeric_limits<double>::infinity();

at::ScalarType accurate(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor positions_of(std::span<const PositionRun> runs, at::Device device) {
  const at::Tensor list = at::empty({count_positions(runs)}, at::kLong);
  auto* to = list.data_ptr<i64>();
  for (const PositionRun& run : runs)
    for (i64 p = run.first; p < run.last; ++p) *to++ = p;
  return list.to(device);
}

// Columns [first, first + heads * D) of rows as [B, heads, rows of a sequence, D], a view.
at::Tensor heads_of(const Context& c, const at::Tensor& rows, i64 first, i64 heads) {
  const i64 D = c.arch.head_dim;
  return rows.narrow(1, first, heads * D).unflatten(1, {heads, D}).unflatten(0, {c.shape.batch, -1}).transpose(1, 2);
}

struct Scores {
  at::Tensor q, k, v;  // wide, [B, h, R, D] and [B, h, C, D]: K and V repeated to h heads
  at::Tensor scores;   // [B, h, R, C], -infinity where hidden
  double scale;
};
Scores scores_of(const Context& c, std::span<const PositionRun> queries, const at::Tensor& qkv, const at::Tensor& kv,
                 std::span<const PositionRun> keys) {
  const auto& a = c.arch;
  const i64 group = a.heads / a.kv_heads;
  const at::ScalarType type = accurate(qkv);
  Scores s{heads_of(c, qkv, 0, a.heads).to(type),
           heads_of(c, kv, 0, a.kv_heads).to(type).repeat_interleave(group, 1),
           heads_of(c, kv, a.kv_heads * a.head_dim, a.kv_heads).to(type).repeat_interleave(group, 1),
           {},
           1.0 / std::sqrt(static_cast<double>(a.head_dim))};
  s.scores = at::matmul(s.q, s.k.transpose(2, 3)).mul_(s.scale);
  const at::Tensor q_at = positions_of(queries, qkv.device()).view({1, 1, -1, 1}),
                   k_at = positions_of(keys, qkv.device()).view({1, 1, 1, -1});
  const std::vector<double> slopes = slopes_of(c);
  if (!slopes.empty()) {
    const at::Tensor slope =
        at::from_blob(const_cast<double*>(slopes.data()), {1, a.heads, 1, 1}, at::kDouble).to(qkv.device(), type);
    s.scores.add_(k_at.sub(q_at).to(type).mul(slope));
  }
  at::Tensor hidden = k_at.gt(q_at);
  if (c.document_start) hidden = hidden.logical_or(k_at.lt(c.document_start->view({c.shape.batch, 1, -1, 1})));
  s.scores.masked_fill_(hidden, kNone);
  return s;
}

// exp(x - lse), 0 where lse is that of no keys.
at::Tensor shares(const at::Tensor& x, const at::Tensor& lse) {
  return x.sub(lse.masked_fill(lse.isneginf(), 0.0)).exp_();
}

void store(bool add, at::Tensor to, const at::Tensor& value) {
  if (add)
    to.copy_(value.add(to));
  else
    to.copy_(value);
}

}  // namespace

void context_attention_forward(const Context& c, std::span<const PositionRun> queries, const at::Tensor& qkv,
                               const at::Tensor& kv, std::span<const PositionRun> keys, bool first, at::Tensor& o,
                               at::Tensor& lse) {
  const Scores s = scores_of(c, queries, qkv, kv, keys);
  const at::Tensor here = at::logsumexp(s.scores, {-1});
  at::Tensor out = heads_of(c, o, 0, c.arch.heads);
  if (first) {
    out.copy_(at::matmul(shares(s.scores, here.unsqueeze(-1)), s.v));
    lse.copy_(here);
    return;
  }
  const at::Tensor before = lse.clone(), total = at::logaddexp(before, here);
  const at::Tensor earlier =
      out.to(accurate(qkv)).mul(shares(before, total).unsqueeze(-1)).masked_fill(before.isneginf().unsqueeze(-1), 0.0);
  out.copy_(at::matmul(shares(s.scores, total.unsqueeze(-1)), s.v).add_(earlier));
  lse.copy_(total);
}

void context_attention_backward(const Context& c, std::span<const PositionRun> queries, const at::Tensor& d_o,
                                const at::Tensor& qkv, const at::Tensor& kv, std::span<const PositionRun> keys,
                                const at::Tensor& o, const at::Tensor& lse, bool add_q, bool add_kv, at::Tensor& d_qkv,
                                at::Tensor& d_kv) {
  const i64 B = c.shape.batch, h = c.arch.heads, kv_heads = c.arch.kv_heads, D = c.arch.head_dim;
  const at::ScalarType type = accurate(qkv);
  const Scores s = scores_of(c, queries, qkv, kv, keys);
  const at::Tensor p = shares(s.scores, lse.unsqueeze(-1));
  const at::Tensor g = heads_of(c, d_o, 0, h).to(type), out = heads_of(c, o, 0, h).to(type);
  const at::Tensor ds = at::matmul(g, s.v.transpose(2, 3)).sub_(g.mul(out).sum(-1, true)).mul_(p).mul_(s.scale);
  const auto of_group = [&](const at::Tensor& t) { return t.view({B, kv_heads, h / kv_heads, -1, D}).sum(2); };
  store(add_q, heads_of(c, d_qkv, 0, h), at::matmul(ds, s.k));
  store(add_kv, heads_of(c, d_kv, 0, kv_heads), of_group(at::matmul(ds.transpose(2, 3), s.q)));
  store(add_kv, heads_of(c, d_kv, kv_heads * D, kv_heads), of_group(at::matmul(p.transpose(2, 3), g)));
}

}  // namespace molen::model::aten
