#include "model/parts_aten.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "arch/alibi.h"
#include "math/vector_kernels.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;

// Statistics, losses and sums are at least fp32.
at::ScalarType accurate(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
bool low_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}
// The widest of our own CPU kernels that fits: fp32 data on the host.
bool own_kernels(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() != at::kDouble;
}

// gradient (+)= value
void add_into(bool accumulate, at::Tensor& gradient, const at::Tensor& value) {
  if (accumulate)
    gradient.add_(value.view_as(gradient));
  else
    gradient.copy_(value.view_as(gradient));
}

// d_W (+)= d_y^T x in the main gradient's dtype.
void weight_gradient(bool accumulate, at::Tensor& d_w, const at::Tensor& d_y, const at::Tensor& x) {
  if (!low_precision(x)) {
    if (accumulate)
      at::addmm_out(d_w, d_w, d_y.t(), x);
    else
      at::mm_out(d_w, d_y.t(), x);
  } else if (x.device().is_cpu()) {
    add_into(accumulate, d_w, at::mm(d_y.t(), x));  // the CPU has no product that rounds only once, into fp32
  } else if (accumulate) {
    at::addmm_out(d_w, d_w, d_y.t(), x, at::kFloat, 1, 1);
  } else {
    at::mm_out(d_w, d_y.t(), x, at::kFloat);
  }
}

// The bias is counted in the rows of `d_bias_y`.
void linear_gradient(bool accumulate, const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& d_bias_y,
                     Linear& d_linear) {
  weight_gradient(accumulate, d_linear.weight_OI, d_y, x);
  if (d_linear.bias_O.defined()) add_into(accumulate, d_linear.bias_O, at::sum(d_bias_y, {0}, false, accurate(d_y)));
}

// The rank's rows of a tensor of all tokens.
at::Tensor own_rows(const Context& c, const at::Tensor& all) {
  return c.share.rows < 0 ? all : all.narrow(0, c.share.first_row, c.share.rows);
}

std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}
std::optional<at::Tensor> optional(const at::Tensor& t, at::ScalarType type) {
  return t.defined() ? std::optional<at::Tensor>(t.to(type)) : std::nullopt;
}

bool rms(const Context& c) {
  return c.arch.norm == arch::Norm::kRms;
}

// RMSNorm from its saved statistics, in the compute dtype.
at::Tensor rms_apply(const at::Tensor& x, const at::Tensor& rstd_N, const NormWeights& w) {
  at::Tensor y = x.to(accurate(x)).mul(rstd_N.unsqueeze(1));
  if (w.weight_d.defined()) y.mul_(w.weight_d);
  return y.to(x.scalar_type());
}

at::Tensor norm_output(const Context& c, const at::Tensor& x, const NormWeights& w, NormSaved& saved) {
  const i64 d = x.size(1);
  if (!rms(c)) {
    const at::ScalarType type = accurate(x);
    const auto [y, mean, rstd] =
        at::native_layer_norm(x.to(type), {d}, optional(w.weight_d, type), optional(w.bias_d, type), c.arch.norm_eps);
    saved.mean_N.copy_(mean.view(-1));
    saved.rstd_N.copy_(rstd.view(-1));
    return y.to(x.scalar_type());
  }
  if (x.is_cuda()) {
    const auto [y, rstd] = at::_fused_rms_norm(x, {d}, optional(w.weight_d), c.arch.norm_eps);
    saved.rstd_N.copy_(rstd.view(-1));
    return y;
  }
  {
    const at::Tensor wide = x.to(accurate(x));
    saved.rstd_N.copy_(wide.mul(wide).mean(1).add_(c.arch.norm_eps).rsqrt_());
  }
  return rms_apply(x, saved.rstd_N, w);
}

at::Tensor norm_output_again(const Context& c, const at::Tensor& x, const NormWeights& w, const NormSaved& saved) {
  if (rms(c)) return rms_apply(x, saved.rstd_N, w);
  at::Tensor y = x.to(accurate(x)).sub(saved.mean_N.unsqueeze(1)).mul_(saved.rstd_N.unsqueeze(1));
  if (w.weight_d.defined()) y.mul_(w.weight_d);
  if (w.bias_d.defined()) y.add_(w.bias_d);
  return y.to(x.scalar_type());
}

// [B, heads, S, D] views of the packed rows.
struct Packed {
  at::Tensor q, k, v;
};
Packed unpack(const Context& c, const at::Tensor& qkv) {
  const auto& a = c.arch;
  const at::Tensor all =
      qkv.view({c.shape.batch, c.shape.sequence, a.heads + 2 * a.kv_heads, a.head_dim}).transpose(1, 2);
  return {all.narrow(1, 0, a.heads), all.narrow(1, a.heads, a.kv_heads),
          all.narrow(1, a.heads + a.kv_heads, a.kv_heads)};
}
at::Tensor heads_of(const Context& c, const at::Tensor& rows) {
  return rows.view({c.shape.batch, c.shape.sequence, c.arch.heads, c.arch.head_dim}).transpose(1, 2);
}

// slope_h (j - i), and -infinity above the diagonal: [1, h, S, S].
at::Tensor alibi_mask(const Context& c, at::ScalarType type, at::Device device) {
  const i64 s = c.shape.sequence;
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(device);
  const std::vector<double> all = arch::alibi_slopes(c.share.ranks > 1 ? c.share.all_heads : c.arch.heads);
  const double* slopes = all.data() + c.share.rank * c.arch.heads;
  const at::Tensor slope = at::from_blob(const_cast<double*>(slopes), {c.arch.heads, 1, 1}, at::kDouble).to(options);
  const at::Tensor place = at::arange(s, options);
  at::Tensor mask = slope.mul(place.unsqueeze(0).sub(place.unsqueeze(1)));
  mask.masked_fill_(place.unsqueeze(0).gt(place.unsqueeze(1)), -std::numeric_limits<double>::infinity());
  return mask.unsqueeze(0);
}

double scale_of(const Context& c) {
  return 1.0 / std::sqrt(static_cast<double>(c.arch.head_dim));
}
bool is_alibi(const Context& c) {
  return c.arch.position == arch::Position::kAlibi;
}
// CUDA's flash attention takes 16-bit types, heads of up to 256 and no bias; the rest is written out.
bool flash_on_cuda(const Context& c, const at::Tensor& qkv) {
  return qkv.is_cuda() && low_precision(qkv) && !is_alibi(c) && c.arch.head_dim <= 256;
}

// Attention written out, for CUDA where flash attention does not serve: all scores at once, in fp32 or wider.
struct Scores {
  Packed wide;      // K and V repeated to h heads
  at::Tensor bias;  // [1, h or 1, S, S]
};
Scores scores_of(const Context& c, const at::Tensor& qkv) {
  const at::ScalarType type = accurate(qkv);
  Packed p = unpack(c, qkv);
  const i64 group = c.arch.heads / c.arch.kv_heads, s = c.shape.sequence;
  at::Tensor bias;
  if (is_alibi(c)) {
    bias = alibi_mask(c, type, qkv.device());
  } else {
    bias = at::full({1, 1, s, s}, -std::numeric_limits<double>::infinity(),
                    at::TensorOptions().dtype(type).device(qkv.device()))
               .triu_(1);
  }
  return {{p.q.to(type), p.k.to(type).repeat_interleave(group, 1), p.v.to(type).repeat_interleave(group, 1)}, bias};
}

}  // namespace

namespace {

// ids as rows of this rank's table, and whether they are: [N], [N, 1].
std::pair<at::Tensor, at::Tensor> rows_of(const Context& c, const at::Tensor& ids, i64 table_rows) {
  const at::Tensor rows = ids.sub(c.share.vocabulary_first), here = rows.ge(0).logical_and_(rows.lt(table_rows));
  return {rows.clamp_(0, table_rows - 1), here.unsqueeze(1)};
}

}  // namespace

void embed_forward(const Context& c, const at::Tensor& ids, const at::Tensor& table, const at::Tensor& positions,
                   at::Tensor& x) {
  if (c.share.ranks > 1) {
    const auto [rows, here] = rows_of(c, ids, table.size(0));
    at::index_select_out(x, table, 0, rows);
    x.mul_(here);
  } else {
    at::index_select_out(x, table, 0, ids);
  }
  if (positions.defined() && c.share.rank == 0)
    x.view({c.shape.batch, c.shape.sequence, -1}).add_(positions.narrow(0, 0, c.shape.sequence));
}

void embed_backward(const Context& c, const at::Tensor& ids, const at::Tensor& d_x, at::Tensor& d_table,
                    at::Tensor& d_positions) {
  if (!c.accumulate) {
    d_table.zero_();
    if (d_positions.defined()) d_positions.zero_();
  }
  if (c.share.ranks > 1) {
    const auto [rows, here] = rows_of(c, ids, d_table.size(0));
    const at::Tensor wide = d_x.to(d_table.scalar_type());
    d_table.index_add_(0, rows, wide.mul(here));
    if (d_positions.defined() && c.share.rank == 0)
      d_positions.narrow(0, 0, c.shape.sequence).add_(wide.view({c.shape.batch, c.shape.sequence, -1}).sum(0));
    return;
  }
  const at::Tensor wide = d_x.to(d_table.scalar_type());
  if (own_kernels(d_x)) {
    math::vector_kernels().embedding_backward(std::max(c.shape.threads, 1), d_x.size(0), c.shape.sequence, d_x.size(1),
                                              ids.data_ptr<std::int32_t>(), wide.data_ptr<float>(),
                                              d_table.data_ptr<float>(),
                                              d_positions.defined() ? d_positions.data_ptr<float>() : nullptr);
    return;
  }
  d_table.index_add_(0, ids, wide);
  if (d_positions.defined())
    d_positions.narrow(0, 0, c.shape.sequence).add_(wide.view({c.shape.batch, c.shape.sequence, -1}).sum(0));
}

void linear_forward(const Context& c, const at::Tensor& x, const at::Tensor& residual, const Linear& w, at::Tensor& y) {
  const at::Tensor weight = w.weight_OI.t();
  if (c.share.ranks > 1 && residual.defined()) {
    y.zero_();
    own_rows(c, y).copy_(residual);
    if (w.bias_O.defined()) own_rows(c, y).add_(w.bias_O);
    at::addmm_out(y, y, x, weight);
    return;
  }
  if (residual.defined() && w.bias_O.defined()) {
    at::add_out(y, residual, w.bias_O);
    at::addmm_out(y, y, x, weight);
  } else if (residual.defined() || w.bias_O.defined()) {
    at::addmm_out(y, residual.defined() ? residual : w.bias_O, x, weight);
  } else {
    at::mm_out(y, x, weight);
  }
}

void linear_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const Linear& w, at::Tensor& d_x,
                     Linear& d_linear) {
  at::mm_out(d_x, d_y, w.weight_OI);
  linear_gradient(c.accumulate, d_y, x, own_rows(c, d_y), d_linear);
}

void norm_linear_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, const Linear& w,
                         NormSaved& saved, at::Tensor& y) {
  linear_forward(c, norm_output(c, x, norm, saved), at::Tensor(), w, y);
}

void norm_linear_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                          const NormWeights& norm, const Linear& w, at::Tensor& d_x, NormWeights& d_norm,
                          Linear& d_linear) {
  linear_gradient(c.accumulate, d_y, norm_output_again(c, x, norm, saved), d_y, d_linear);
  norm_backward(c, at::mm(d_y, w.weight_OI), x, saved, norm, true, d_x, d_norm);
}

void rope(const Context& c, const RopeTable& table, bool inverse, at::Tensor& qkv) {
  if (c.arch.position != arch::Position::kRope) return;
  const auto& a = c.arch;
  const i64 half = a.head_dim / 2;
  const at::Tensor rotated = qkv.view({c.shape.batch, c.shape.sequence, a.heads + 2 * a.kv_heads, a.head_dim})
                                 .narrow(2, 0, a.heads + a.kv_heads);
  const at::Tensor first = rotated.narrow(3, 0, half), second = rotated.narrow(3, half, half);
  const at::Tensor cosine = table.cos_SD2.narrow(0, 0, c.shape.sequence).unsqueeze(1),
                   sine = table.sin_SD2.narrow(0, 0, c.shape.sequence).unsqueeze(1);
  const double sign = inverse ? -1.0 : 1.0;
  const at::Tensor new_first = first.mul(cosine).sub_(second.mul(sine), sign);
  const at::Tensor new_second = second.mul(cosine).add_(first.mul(sine), sign);
  first.copy_(new_first);
  second.copy_(new_second);
}

void attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  at::Tensor out = heads_of(c, o);
  if (flash_on_cuda(c, qkv)) {
    const Packed p = unpack(c, qkv);
    const auto result = at::_scaled_dot_product_flash_attention(p.q, p.k, p.v, 0.0, true, false, scale_of(c));
    out.copy_(std::get<0>(result));
    lse.copy_(std::get<1>(result));
  } else if (qkv.is_cuda()) {
    const Scores s = scores_of(c, qkv);
    const at::Tensor scores = at::matmul(s.wide.q, s.wide.k.transpose(2, 3)).mul_(scale_of(c)).add_(s.bias);
    lse.copy_(at::logsumexp(scores, {-1}));
    out.copy_(at::matmul(scores.sub(lse.unsqueeze(-1)).exp_(), s.wide.v));
  } else {
    const Packed p = unpack(c, qkv);
    std::optional<at::Tensor> mask;
    if (is_alibi(c)) mask = alibi_mask(c, accurate(qkv), qkv.device()).expand({c.shape.batch, -1, -1, -1});
    const auto [result, sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(p.q, p.k, p.v, 0.0, !mask, mask, scale_of(c));
    out.copy_(result);
    lse.copy_(sums);
  }
}

namespace {

// As the formula in math/attention.h says, for what attention_forward wrote out.
void attention_backward_written_out(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                                    const at::Tensor& lse, const Packed& d) {
  const i64 B = c.shape.batch, S = c.shape.sequence, kv = c.arch.kv_heads, group = c.arch.heads / kv,
            D = c.arch.head_dim;
  const Scores s = scores_of(c, qkv);
  const at::Tensor g = heads_of(c, d_o).to(accurate(qkv)), out = heads_of(c, o).to(accurate(qkv));
  const at::Tensor p =
      at::matmul(s.wide.q, s.wide.k.transpose(2, 3)).mul_(scale_of(c)).add_(s.bias).sub_(lse.unsqueeze(-1)).exp_();
  const at::Tensor ds =
      at::matmul(g, s.wide.v.transpose(2, 3)).sub_(g.mul(out).sum(-1, true)).mul_(p).mul_(scale_of(c));
  d.q.copy_(at::matmul(ds, s.wide.k));
  d.k.copy_(at::matmul(ds.transpose(2, 3), s.wide.q).view({B, kv, group, S, D}).sum(2));
  d.v.copy_(at::matmul(p.transpose(2, 3), g).view({B, kv, group, S, D}).sum(2));
}

}  // namespace

void attention_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                        const at::Tensor& lse, at::Tensor& d_qkv) {
  const Packed p = unpack(c, qkv), d = unpack(c, d_qkv);
  const at::Tensor g = heads_of(c, d_o), out = heads_of(c, o);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads;
  if (flash_on_cuda(c, qkv)) {
    const at::Tensor none, rng = at::zeros({2}, at::TensorOptions().dtype(at::kLong).device(qkv.device()));
    grads = at::_scaled_dot_product_flash_attention_backward(g, p.q, p.k, p.v, out, lse, none, none, c.shape.sequence,
                                                             c.shape.sequence, 0.0, true, rng, rng, scale_of(c));
  } else if (qkv.is_cuda()) {
    return attention_backward_written_out(c, d_o, qkv, o, lse, d);
  } else {
    std::optional<at::Tensor> mask;
    if (is_alibi(c)) mask = alibi_mask(c, accurate(qkv), qkv.device()).expand({c.shape.batch, -1, -1, -1});
    grads = at::_scaled_dot_product_flash_attention_for_cpu_backward(g, p.q, p.k, p.v, out, lse, 0.0, !mask, mask,
                                                                     scale_of(c));
  }
  d.q.copy_(std::get<0>(grads));
  d.k.copy_(std::get<1>(grads));
  d.v.copy_(std::get<2>(grads));
}

void activation_forward(const Context& c, const at::Tensor& up, at::Tensor& a) {
  if (c.arch.activation == arch::Activation::kGeluTanh) {
    at::gelu_out(a, up, "tanh");
    return;
  }
  const i64 f = c.arch.ffn;
  at::mul_out(a, at::silu(up.narrow(1, 0, f)), up.narrow(1, f, f));
}

void activation_backward(const Context& c, const at::Tensor& d_a, const at::Tensor& up, at::Tensor& d_up) {
  if (c.arch.activation == arch::Activation::kGeluTanh) {
    at::gelu_backward_out(d_up, d_a, up, "tanh");
    return;
  }
  const i64 f = c.arch.ffn;
  const at::Tensor gate = up.narrow(1, 0, f), linear = up.narrow(1, f, f);
  at::Tensor d_gate = d_up.narrow(1, 0, f), d_linear = d_up.narrow(1, f, f);
  at::mul_out(d_linear, d_a, at::silu(gate));
  at::silu_backward_out(d_gate, d_a.mul(linear), gate);
}

void norm_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, NormSaved& saved, at::Tensor& y) {
  y.copy_(norm_output(c, x, norm, saved));
}

void norm_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                   const NormWeights& norm, bool add, at::Tensor& d_x, NormWeights& d_norm) {
  const i64 d = x.size(1);
  const at::ScalarType type = accurate(x);
  at::Tensor value;
  if (rms(c) && x.is_cuda()) {
    const auto [d_in, d_w] = at::_fused_rms_norm_backward(d_y, x, {d}, saved.rstd_N.unsqueeze(1),
                                                          optional(norm.weight_d), {true, norm.weight_d.defined()});
    if (d_norm.weight_d.defined()) add_into(c.accumulate, d_norm.weight_d, d_w);
    value = d_in;
  } else if (rms(c)) {
    const at::Tensor g = d_y.to(type), rstd = saved.rstd_N.unsqueeze(1);
    const at::Tensor unit = x.to(type).mul(rstd);
    if (d_norm.weight_d.defined()) add_into(c.accumulate, d_norm.weight_d, g.mul(unit).sum(0));
    value = norm.weight_d.defined() ? g.mul(norm.weight_d) : g.clone();
    const at::Tensor mean = value.mul(unit).mean(1, true);
    value.sub_(unit.mul(mean)).mul_(rstd);
  } else {
    const auto [d_in, d_w, d_b] = at::native_layer_norm_backward(
        d_y.to(type), x.to(type), {d}, saved.mean_N.unsqueeze(1), saved.rstd_N.unsqueeze(1),
        optional(norm.weight_d, type), optional(norm.bias_d, type),
        {true, norm.weight_d.defined(), norm.bias_d.defined()});
    if (d_norm.weight_d.defined()) add_into(c.accumulate, d_norm.weight_d, d_w);
    if (d_norm.bias_d.defined()) add_into(c.accumulate, d_norm.bias_d, d_b);
    value = d_in;
  }
  if (add && c.share.ranks > 1) {  // in the rank's rows; another adds to the others
    if (!c.share.residual_rows) own_rows(c, value).add_(own_rows(c, d_x));
    d_x.copy_(value);
  } else if (add) {
    d_x.add_(value);
  } else {
    d_x.copy_(value);
  }
}

namespace {

// Logits in fp32 or wider.
at::Tensor wide_logits(const at::Tensor& y, const at::Tensor& head) {
  if (low_precision(y) && y.is_cuda()) return at::mm(y, head.t(), at::kFloat);
  return at::mm(y, head.t()).to(accurate(y));
}

// Losses; logits become (softmax - onehot) * scale where `gradient`.
void cross_entropy(const Context& c, bool gradient, double scale, const at::Tensor& labels, at::Tensor& logits,
                   at::Tensor& losses) {
  if (own_kernels(logits)) {
    const auto* label = labels.data_ptr<std::int32_t>();
    for (i64 i = 0; i < labels.numel(); ++i)
      MOLEN_CHECK(label[i] >= -1 && label[i] < logits.size(1), "label {} at place {} is not in the vocabulary of {}",
                  label[i], i, logits.size(1));
    math::vector_kernels().cross_entropy(std::max(c.shape.threads, 1), logits.size(0), logits.size(1), label, gradient,
                                         scale, logits.data_ptr<float>(), losses.data_ptr<float>());
    return;
  }
  const at::Tensor valid = labels.ge(0).to(logits.scalar_type()),
                   index = labels.clamp_min(0).to(at::kLong).unsqueeze(1);
  const at::Tensor lse = at::logsumexp(logits, {1}, true);
  losses.copy_(lse.sub(logits.gather(1, index)).squeeze(1).mul_(valid));
  if (!gradient) return;
  logits.sub_(lse).exp_();
  logits.scatter_add_(1, index, at::full_like(index, -1, logits.options()));
  logits.mul_(valid.mul(scale).unsqueeze(1));
}

}  // namespace

void head_loss(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
               double grad_scale, at::Tensor& losses, at::Tensor& d_y, at::Tensor& d_head) {
  at::Tensor logits = wide_logits(y, head);
  cross_entropy(c, true, grad_scale, labels, logits, losses);
  const at::Tensor d_logits = logits.to(y.scalar_type());
  at::mm_out(d_y, d_logits, head);
  weight_gradient(c.accumulate, d_head, d_logits, y);
}

namespace {

// Everyone's sums to the logarithm of the whole sum and the losses.
at::Tensor combine_sums(const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  const at::Tensor all = sums.narrow(1, 0, losses.size(0));
  const at::Tensor lse = at::logsumexp(all.select(2, 0), {0});
  losses.copy_(lse.sub(all.select(2, 1).sum(0)).mul_(labels.ge(0)));
  return lse;
}

}  // namespace

void head_logits_sums(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                      at::Tensor& logits, at::Tensor& sums) {
  logits.copy_(wide_logits(y, head));
  sums.select(1, 0).copy_(at::logsumexp(logits, {1}));
  const auto [columns, here] = rows_of(c, labels, head.size(0));
  sums.select(1, 1).copy_(logits.gather(1, columns.to(at::kLong).unsqueeze(1)).mul_(here).squeeze(1));
}

void head_shared_loss(const Context&, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  combine_sums(sums, labels, losses);
}

void head_shared_gradient(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& logits,
                          const at::Tensor& y, const at::Tensor& head, double grad_scale, at::Tensor& losses,
                          at::Tensor& d_y, at::Tensor& d_head) {
  const at::Tensor lse = combine_sums(sums, labels, losses);
  logits.sub_(lse.unsqueeze(1)).exp_();
  const auto [columns, here] = rows_of(c, labels, head.size(0));
  logits.scatter_add_(1, columns.to(at::kLong).unsqueeze(1), here.to(logits.scalar_type()).neg_());
  logits.mul_(labels.ge(0).to(logits.scalar_type()).mul_(grad_scale).unsqueeze(1));
  const at::Tensor d_logits = logits.to(y.scalar_type());
  at::mm_out(d_y, d_logits, head);
  weight_gradient(c.accumulate, d_head, d_logits, y);
}

void head_loss_forward(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                       at::Tensor& losses) {
  at::Tensor logits = wide_logits(y, head);
  cross_entropy(c, false, 1.0, labels, logits, losses);
}

void head_logits(const Context&, const at::Tensor& y, const at::Tensor& head, at::Tensor& logits) {
  logits.copy_(wide_logits(y, head));
}

}  // namespace molen::model::aten
