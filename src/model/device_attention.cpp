#include "model/device_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/aten_temporaries.h"
#include "model/device_documents.h"
#include "model/kernels.h"
#include "model/tensor_slice.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;
using Runs = std::span<const PositionRun>;
constexpr double kNone = -std::numeric_limits<double>::infinity();  // log-sum-exp over no scores

// Returns columns [first, first + heads * D) of rows as [B, heads, rows of a sequence, D], a view.
at::Tensor head_range(const Context& c, const at::Tensor& rows, i64 first, i64 heads) {
  const i64 D = c.arch.head_dim;
  return rows.narrow(1, first, heads * D).unflatten(1, {heads, D}).unflatten(0, {c.shape.batch, -1}).transpose(1, 2);
}

// Returns exp(x - lse), or 0 when lse is the log-sum-exp over no keys.
at::Tensor shares(const at::Tensor& x, const at::Tensor& lse) {
  return x.sub(lse.masked_fill(lse.eq(kNone), 0.0)).exp_();
}

// The inputs that all pieces of one call share.
class Sources {
 public:
  Sources(const AttentionBackend& way, const Context& c, Runs queries, const at::Tensor& qkv, const at::Tensor& kv,
          Runs keys)
      : c_(c),
        flash_(way.flash),
        q_(head_range(c, qkv, 0, c.arch.heads)),
        k_(head_range(c, kv, 0, c.arch.kv_heads)),
        v_(head_range(c, kv, c.arch.kv_heads * c.arch.head_dim, c.arch.kv_heads)),
        scale_(1.0 / std::sqrt(static_cast<double>(c.arch.head_dim))) {
    if (flash_) {
      pieces_ = flash_pieces(c.shape.batch, queries, keys);
      return;
    }
    const at::ScalarType type = accurate(qkv);
    q_ = q_.to(type);
    k_ = k_.to(type).contiguous(), v_ = v_.to(type).contiguous();  // once for all pieces
    query_at_ = positions_of(queries), key_at_ = positions_of(keys);
    if (c.document_start) starts_ = c.document_start->view({c.shape.batch, 1, -1, 1});
    if (is_alibi(c)) slopes_ = checked_slopes(c).view({1, c.arch.heads, 1, 1}).to(type);
    pieces_ = written_pieces(c.shape.batch, queries, keys, way.scores / c.arch.heads);
  }

  const std::vector<AttentionPiece>& pieces() const { return pieces_; }
  // Returns whether the piece covers the whole call.
  bool whole(const AttentionPiece& p) const {
    return pieces_.size() == 1 && p.sequences == q_.size(0) && p.query_rows == q_.size(2) && p.key_rows == k_.size(2);
  }

  // Returns o and lse of a piece's rows over the piece's keys alone.
  std::pair<at::Tensor, at::Tensor> forward(const AttentionPiece& p) const {
    if (flash_) return flash_forward(queries(p, q_), keys(p, k_), keys(p, v_), p.causal);
    const at::Tensor scores = scores_of(p), most = at::amax(scores, {-1}, true);
    const at::Tensor grown = shares(scores, most), sums = grown.sum(-1, true);
    const at::Tensor o = at::matmul(by_group(grown), keys(p, v_)).view({sums.size(0), sums.size(1), sums.size(2), -1});
    // Without any keys the sums are 0, so o is 0 and lse is -infinity.
    return {o.div(sums.masked_fill(sums.eq(0), 1.0)), sums.log().add_(most).squeeze(-1)};
  }

  struct Gradients {
    at::Tensor q, k, v;  // [B, h, r, D]; [B, kv, C, D]
  };
  // Takes d_o, o and lse of all rows and over all keys: [B, h, R, D] and [B, h, R].
  Gradients backward(const AttentionPiece& p, const at::Tensor& d_o, const at::Tensor& o, const at::Tensor& lse) const {
    const at::Tensor sums = queries(p, lse);
    if (flash_) return flash_backward(p, queries(p, d_o), queries(p, o), sums.contiguous());
    const at::Tensor g = queries(p, d_o).to(q_.scalar_type()), out = queries(p, o).to(q_.scalar_type());
    const at::Tensor shared = shares(scores_of(p), sums.unsqueeze(-1)), g_group = by_group(g), k = keys(p, k_);
    const at::Tensor d_scores = at::matmul(g_group, keys(p, v_).transpose(2, 3))
                                    .view(shared.sizes())
                                    .sub_(g.mul(out).sum(-1, true))
                                    .mul_(shared)
                                    .mul_(scale_);
    const at::Tensor ds = by_group(d_scores);
    return {at::matmul(ds, k).view(g.sizes()), at::matmul(ds.transpose(2, 3), by_group(queries(p, q_))),
            at::matmul(by_group(shared).transpose(2, 3), g_group)};
  }

  static at::Tensor queries(const AttentionPiece& p, const at::Tensor& all) {
    return all.narrow(0, p.sequence, p.sequences).narrow(2, p.query, p.query_rows);
  }
  static at::Tensor keys(const AttentionPiece& p, const at::Tensor& all) {
    return all.narrow(0, p.sequence, p.sequences).narrow(2, p.key, p.key_rows);
  }

 private:
  at::Tensor positions_of(Runs runs) const {
    std::vector<at::Tensor> each;
    for (const PositionRun& run : runs)
      each.push_back(at::arange(run.first, run.last, at::TensorOptions().dtype(at::kLong).device(q_.device())));
    return at::cat(each);
  }
  // Returns [B, h, r, n] as [B, kv, group * r, n]: the queries that share a key head follow one another.
  at::Tensor by_group(const at::Tensor& t) const { return t.reshape({t.size(0), c_.arch.kv_heads, -1, t.size(3)}); }
  // Returns [B, h, r, C], with -infinity for hidden keys.
  at::Tensor scores_of(const AttentionPiece& p) const {
    at::Tensor scores = at::matmul(by_group(queries(p, q_)), keys(p, k_).transpose(2, 3))
                            .mul_(scale_)
                            .view({p.sequences, c_.arch.heads, p.query_rows, p.key_rows});
    const at::Tensor q_at = query_at_.narrow(0, p.query, p.query_rows).view({1, 1, -1, 1}),
                     k_at = key_at_.narrow(0, p.key, p.key_rows).view({1, 1, 1, -1});
    if (slopes_.defined()) scores.add_(k_at.sub(q_at).to(scores.scalar_type()).mul(slopes_));
    at::Tensor hidden = k_at.gt(q_at);
    if (starts_.defined()) hidden = hidden.bitwise_or(k_at.lt(queries(p, starts_)));
    return scores.masked_fill_(hidden, kNone);
  }

  std::pair<at::Tensor, at::Tensor> flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                  bool causal) const {
    if (q.device().is_cpu()) {  // the same contract as on devices, so that pieces can be tested without one
      const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, scale_);
      return {o, lse};
    }
    const auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale_);
    return {std::get<0>(result), std::get<1>(result)};
  }
  Gradients flash_backward(const AttentionPiece& p, const at::Tensor& d_o, const at::Tensor& o,
                           const at::Tensor& lse) const {
    const at::Tensor q = queries(p, q_), k = keys(p, k_), v = keys(p, v_);
    const at::Tensor g = d_o.to(q.scalar_type()), out = o.to(q.scalar_type());
    std::tuple<at::Tensor, at::Tensor, at::Tensor> d;
    if (q.device().is_cpu()) {
      d = at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, lse, 0.0, p.causal, {}, scale_);
    } else {
      const at::Tensor none, rng = at::zeros({2}, at::TensorOptions().dtype(at::kLong).device(q.device()));
      d = at::_scaled_dot_product_flash_attention_backward(g, q, k, v, out, lse, none, none, p.query_rows, p.key_rows,
                                                           0.0, p.causal, rng, rng, scale_);
    }
    return {std::get<0>(d), std::get<1>(d), std::get<2>(d)};
  }

  const Context& c_;
  bool flash_;
  at::Tensor q_, k_, v_;  // [B, h, R, D], [B, kv, M, D]: views of the operands, or widened copies
  double scale_;
  at::Tensor query_at_, key_at_, starts_, slopes_;  // used when scores are written out
  std::vector<AttentionPiece> pieces_;
};

void store(bool add, const at::Tensor& to, const at::Tensor& value) {
  to.copy_(add ? value.add(to) : value);
}

bool whole_sequences(const Context& c, Runs runs) {
  return runs.size() == 1 && runs[0].first == 0 && runs[0].last == c.shape.sequence;
}

// Returns a zero gradient for pieces to add to, in fp32 or wider.
at::Tensor zeros_of(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(accurate(like)));
}

}  // namespace

AttentionBackend attention_backend(const Context& c, bool cuda, at::ScalarType type) {
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  AttentionBackend way;
  const bool fits = c.shape.kernels != kUnfused && cuda && narrow && c.arch.position != arch::Position::kAlibi &&
                    c.arch.head_dim <= 256 && c.arch.head_dim % 8 == 0;
  way.flash = fits && !c.document_start;
  way.documents = fits && c.document_start;
  return way;
}

std::vector<AttentionPiece> flash_pieces(i64 batch, Runs queries, Runs keys) {
  std::vector<AttentionPiece> pieces;
  const auto add = [&](i64 query, i64 query_rows, i64 key, i64 key_rows, bool causal) {
    if (query_rows > 0 && key_rows > 0) pieces.push_back({0, batch, query, query_rows, key, key_rows, causal});
  };
  i64 query = 0;
  for (const PositionRun& q : queries) {
    i64 key = 0;
    for (const PositionRun& k : keys) {
      const i64 begin = std::max(k.first, q.first), end = std::min(k.last, q.last), both = end - begin;
      add(query, q.size(), key, std::min(k.last, q.first) - k.first, false);
      add(query + begin - q.first, both, key + begin - k.first, both, true);
      if (both > 0) add(query + end - q.first, q.last - end, key + begin - k.first, both, false);
      key += k.size();
    }
    query += q.size();
  }
  return pieces;
}

std::vector<AttentionPiece> written_pieces(i64 batch, Runs queries, Runs keys, i64 scores) {
  std::vector<AttentionPiece> pieces;
  const i64 columns = count_positions(keys), whole = count_positions(queries) * columns;  // scores of a sequence
  if (whole == 0) return pieces;
  for (i64 sequence = 0, sequences = 0; sequence < batch; sequence += sequences) {
    i64 query = 0;
    sequences = std::clamp<i64>(scores / whole, 1, batch - sequence);
    const i64 rows = std::max<i64>(1, scores / (sequences * columns));
    for (const PositionRun& q : queries)
      for (i64 first = q.first; first < q.last; first += rows) {
        const i64 count = std::min(rows, q.last - first);
        i64 seen = 0;
        for (const PositionRun& k : keys) seen += std::clamp<i64>(first + count - k.first, 0, k.size());
        if (seen > 0) pieces.push_back({sequence, sequences, query, count, 0, seen, false});
        query += count;
      }
  }
  return pieces;
}

void device_attention_forward(const AttentionBackend& way, const Context& c, Runs queries, const at::Tensor& qkv,
                              const at::Tensor& kv, Runs keys, bool first, at::Tensor& o, at::Tensor& lse) {
  if (way.documents && first && whole_sequences(c, queries) && whole_sequences(c, keys))
    return document_flash_forward(c, qkv, kv, o, lse);
  const Sources s(way, c, queries, qkv, kv, keys);
  const at::Tensor out = head_range(c, o, 0, c.arch.heads);
  if (first && s.pieces().size() == 1 && s.whole(s.pieces()[0])) {
    const auto [all, sums] = s.forward(s.pieces()[0]);
    out.copy_(all);
    lse.copy_(sums);
    return;
  }
  if (first) lse.fill_(kNone);
  const at::Tensor total = first ? zeros_of(out) : out.to(accurate(out));
  for (const AttentionPiece& p : s.pieces()) {
    const auto [part, sums] = s.forward(p);
    const at::Tensor rows = Sources::queries(p, total), here = Sources::queries(p, lse), before = here.clone();
    here.copy_(at::logaddexp(before, sums));
    rows.mul_(shares(before, here).unsqueeze(-1)).add_(part.mul(shares(sums, here).unsqueeze(-1)));
  }
  if (!total.is_same(out)) out.copy_(total);
}

void device_attention_backward(const AttentionBackend& way, const Context& c, Runs queries, const at::Tensor& d_o,
                               const at::Tensor& qkv, const at::Tensor& kv, Runs keys, const at::Tensor& o,
                               const at::Tensor& lse, bool add_q, bool add_kv, at::Tensor& d_qkv, at::Tensor& d_kv) {
  if (way.documents && whole_sequences(c, queries) && whole_sequences(c, keys))
    return document_flash_backward(c, d_o, qkv, kv, o, lse, add_q, add_kv, d_qkv, d_kv);
  const i64 h = c.arch.heads, kv_heads = c.arch.kv_heads, D = c.arch.head_dim;
  const Sources s(way, c, queries, qkv, kv, keys);
  const at::Tensor g = head_range(c, d_o, 0, h), out = head_range(c, o, 0, h), d_q = head_range(c, d_qkv, 0, h),
                   d_k = head_range(c, d_kv, 0, kv_heads), d_v = head_range(c, d_kv, kv_heads * D, kv_heads);
  Sources::Gradients sums;
  if (s.pieces().size() == 1 && s.whole(s.pieces()[0])) {
    sums = s.backward(s.pieces()[0], g, out, lse);
  } else {
    sums = {zeros_of(d_q), zeros_of(d_k), zeros_of(d_v)};
    for (const AttentionPiece& p : s.pieces()) {
      const Sources::Gradients part = s.backward(p, g, out, lse);
      Sources::queries(p, sums.q).add_(part.q);
      Sources::keys(p, sums.k).add_(part.k);
      Sources::keys(p, sums.v).add_(part.v);
    }
  }
  store(add_q, d_q, sums.q);
  store(add_kv, d_k, sums.k);
  store(add_kv, d_v, sums.v);
}

}  // namespace molen::model::aten
