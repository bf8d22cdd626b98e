#include "model/parts_aten.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "math/allocation.h"
#include "math/attention.h"
#include "math/attention_narrow.h"
#include "math/gemm_narrow.h"
#include "math/reference.h"
#include "math/vector_kernels.h"
#include "model/aten_temporaries.h"
#include "model/context.h"
#include "model/tensor_slice.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;
using math::LibraryCall;
using math::Rewind;

// out = a b
void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const LibraryCall call;
  at::mm_out(out, a, b);
}
// start + a b
void product_added(at::Tensor& out, const at::Tensor& start, const at::Tensor& a, const at::Tensor& b) {
  const LibraryCall call;
  at::addmm_out(out, start, a, b);
}

// gradient (+)= value in 16 bits. The loop takes a block at a time, because ATen would widen the whole value at once.
void add_narrow_into(const Context& c, at::Tensor& gradient, const at::Tensor& value) {
  if (own_narrow(value))
    return narrow_kernels().widen(threads_of(c), value.numel(), bits(value), c.accumulate, floats(gradient));
  const i64 count = value.numel(), block = std::min(count, arch::kWidenBlock);
  const at::Tensor from = value.view(-1), to = gradient.view(-1), wide = temporary(c, value, at::kFloat, {block});
  for (i64 first = 0; first < count; first += block) {
    const i64 n = std::min(block, count - first);
    const at::Tensor source = from.narrow(0, first, n);
    at::Tensor target = to.narrow(0, first, n);
    if (c.accumulate) {
      at::Tensor part = wide.narrow(0, 0, n);
      part.copy_(source);
      target.add_(part);
    } else {
      target.copy_(source);
    }
  }
}

// Takes scratch for one of molen's own products or for a rounded gradient. Both get the same size on every processor,
// as in the plan.
void* weight_gradient_space(const Context& c, const at::Tensor& d_w, i64 terms) {
  return c.scratch.take_bytes(
      std::max(2 * d_w.numel(), math::weight_gradient_scratch(threads_of(c), d_w.size(1), terms)));
}

// d_W (+)= d_y^T x in the main gradient's dtype.
void weight_gradient(const Context& c, at::Tensor& d_w, const at::Tensor& d_y, const at::Tensor& x) {
  const Rewind rewind(c.scratch);
  if (!low_precision(x)) {
    if (c.accumulate)
      product_added(d_w, d_w, d_y.t(), x);
    else
      product(d_w, d_y.t(), x);
  } else if (own_narrow(x) && math::own_products()) {
    const i64 terms = x.size(0), in = x.size(1);
    MOLEN_CHECK(d_w.is_contiguous(), "the gradient of a weight is not contiguous");
    math::weight_gradient(threads_of(c), d_y.size(1), in, terms, bits(d_y), bits(x), c.accumulate, floats(d_w),
                          weight_gradient_space(c, d_w, terms));
  } else if (x.device().is_cpu()) {  // ATen has no product into fp32 that rounds only once
    at::Tensor rounded = own_narrow(x)
                             ? at::from_blob(weight_gradient_space(c, d_w, x.size(0)), d_w.sizes(), x.options())
                             : temporary(c, x, x.scalar_type(), d_w.sizes());
    product(rounded, d_y.t(), x);
    add_narrow_into(c, d_w, rounded);
  } else if (c.accumulate) {
    at::addmm_out(d_w, d_w, d_y.t(), x, at::kFloat, 1, 1);
  } else {
    at::mm_out(d_w, d_y.t(), x, at::kFloat);
  }
}

// d_b (+)= the column sums of d_y, which has some or all of the N rows. The scratch does not depend on the number of
// rows.
void bias_gradient(const Context& c, at::Tensor& d_b, const at::Tensor& d_y) {
  if (!d_y.device().is_cpu()) return add_into(c.accumulate, d_b, at::sum(d_y, {0}, false, accurate(d_y)));
  const Rewind rewind(c.scratch);
  const i64 rows = d_y.size(0), columns = d_y.size(1);
  if (own_narrow(d_y))
    return narrow_kernels().column_sums(threads_of(c), rows, columns, bits(d_y), c.accumulate, floats(d_b));
  at::Tensor sums = temporary(c, d_y, accurate(d_y), {columns});
  if (!low_precision(d_y)) {
    at::sum_out(sums, d_y, {0});
    return add_into(c.accumulate, d_b, sums);
  }
  const i64 block = arch::widened_rows(c.shape.tokens(), columns);
  const at::Tensor space = temporary(c, d_y, at::kFloat, {block, columns});
  for (i64 first = 0; first < rows; first += block) {
    const i64 n = std::min(block, rows - first);
    at::Tensor wide = space.narrow(0, 0, n);
    wide.copy_(d_y.narrow(0, first, n));
    at::sum_out(sums, wide, {0});
    add_into(c.accumulate || first > 0, d_b, sums);
  }
}

// The bias gradient sums the rows of `d_bias_y`.
void linear_gradient(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& d_bias_y,
                     Linear& d_linear) {
  weight_gradient(c, d_linear.weight_OI, d_y, x);
  if (d_linear.bias_O.defined()) bias_gradient(c, d_linear.bias_O, d_bias_y);
}

// Returns the rank's rows of a tensor of all tokens.
at::Tensor own_rows(const Context& c, const at::Tensor& all) {
  return c.share.rows < 0 ? all : all.narrow(0, c.share.first_row, c.share.rows);
}

std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}
bool rms(const Context& c) {
  return c.arch.norm == arch::Norm::kRms;
}

// Writes the norm of x, in the compute dtype, to y, and its statistics to `saved`.
void norm_output(const Context& c, const at::Tensor& x, const NormWeights& w, NormSaved& saved, at::Tensor& y) {
  const i64 d = x.size(1);
  const Rewind rewind(c.scratch);
  if (own_narrow(x))
    return narrow_kernels().norm_forward(threads_of(c), x.size(0), d, c.arch.norm_eps, bits(x), bits(w.weight_d),
                                         bits(w.bias_d), floats(saved.rstd_N), rms(c) ? nullptr : floats(saved.mean_N),
                                         bits(y));
  if (!rms(c)) {
    const auto [out, mean, rstd] = at::native_layer_norm(widened(c, x), {d}, optional(widened(c, w.weight_d)),
                                                         optional(widened(c, w.bias_d)), c.arch.norm_eps);
    saved.mean_N.copy_(mean.view(-1));
    saved.rstd_N.copy_(rstd.view(-1));
    y.copy_(out);
    return;
  }
  if (x.is_cuda()) {
    const auto [out, rstd] = at::_fused_rms_norm(x, {d}, optional(w.weight_d), c.arch.norm_eps);
    saved.rstd_N.copy_(rstd.view(-1));
    y.copy_(out);
    return;
  }
  const at::Tensor wide = widened(c, x);
  at::Tensor unit = low_precision(x) ? temporary(c, x, accurate(x), x.sizes()) : y;
  at::mul_out(unit, wide, wide);
  at::mean_out(saved.rstd_N, unit, {1});
  saved.rstd_N.add_(c.arch.norm_eps).rsqrt_();
  at::mul_out(unit, wide, saved.rstd_N.unsqueeze(1));
  if (w.weight_d.defined()) unit.mul_(widened(c, w.weight_d));
  if (!unit.is_same(y)) y.copy_(unit);
}

// Computes the norm's output from the saved statistics.
void norm_output_again(const Context& c, const at::Tensor& x, const NormWeights& w, const NormSaved& saved,
                       at::Tensor& y) {
  const Rewind rewind(c.scratch);
  if (own_narrow(x))
    return narrow_kernels().norm_apply(threads_of(c), x.size(0), x.size(1), bits(x), floats(saved.rstd_N),
                                       rms(c) ? nullptr : floats(saved.mean_N), bits(w.weight_d), bits(w.bias_d),
                                       bits(y));
  at::Tensor unit = low_precision(x) ? temporary(c, x, accurate(x), x.sizes()) : y;
  unit.copy_(x);
  if (!rms(c)) unit.sub_(saved.mean_N.unsqueeze(1));
  unit.mul_(saved.rstd_N.unsqueeze(1));
  if (w.weight_d.defined()) unit.mul_(widened(c, w.weight_d));
  if (w.bias_d.defined()) unit.add_(widened(c, w.bias_d));
  if (!unit.is_same(y)) y.copy_(unit);
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

// Returns slope_h (j - i), with -infinity above the diagonal: [1, h, S, S].
at::Tensor alibi_mask(const Context& c, at::ScalarType type) {
  const i64 s = c.shape.sequence;
  const at::Tensor slope = checked_slopes(c).view({c.arch.heads, 1, 1}).to(type);
  const at::Tensor place = at::arange(s, type);
  at::Tensor mask = slope.mul(place.unsqueeze(0).sub(place.unsqueeze(1)));
  mask.masked_fill_(place.unsqueeze(0).gt(place.unsqueeze(1)), -std::numeric_limits<double>::infinity());
  return mask.unsqueeze(0);
}

double scale_of(const Context& c) {
  return 1.0 / std::sqrt(static_cast<double>(c.arch.head_dim));
}
// Returns whether molen's own attention runs. It runs on the host, where it is faster than ATen's. Rows in bf16 have
// their own kernels (math/attention_narrow.h), and rows in fp16 are widened.
bool own_attention(const Context& c, const at::Tensor& qkv) {
  return own_kernels(qkv) && c.arch.head_dim <= arch::kOwnAttentionMaxHead;
}
math::AttentionShape attention_shape(const Context& c, const std::vector<float>& slopes) {
  math::AttentionShape shape;
  shape.B = c.shape.batch, shape.S = c.shape.sequence, shape.h = c.arch.heads, shape.k = c.arch.kv_heads,
  shape.D = c.arch.head_dim, shape.threads = std::max(c.shape.threads, 1);
  shape.alibi = slopes.empty() ? nullptr : slopes.data();
  return shape;
}

// On a device, returns ids as rows of this rank's table, [N], and whether each row is in this rank's table, [N, 1].
std::pair<at::Tensor, at::Tensor> device_rows_of(const Context& c, const at::Tensor& ids, i64 table_rows) {
  const at::Tensor rows = ids.sub(c.share.vocabulary_first), here = rows.ge(0).bitwise_and_(rows.lt(table_rows));
  return {rows.clamp(0, table_rows - 1), here.unsqueeze(1)};
}

// Embeds with this rank's part of the table, and leaves zeros for rows of another rank's table.
void share_embed_forward(const Context& c, const at::Tensor& ids, const at::Tensor& table, at::Tensor& x) {
  if (!x.device().is_cpu()) {
    const auto [rows, here] = device_rows_of(c, ids, table.size(0));
    at::index_select_out(x, table, 0, rows);
    x.mul_(here);
    return;
  }
  const std::int32_t* rows = rows_of(c, ids, table.size(0));
  const auto bytes = static_cast<std::size_t>(x.size(1) * x.element_size());
  auto* to = static_cast<char*>(x.data_ptr());
  const auto* from = static_cast<const char*>(table.data_ptr());
  for (i64 n = 0; n < x.size(0); ++n, to += bytes)
    if (rows[n] >= 0)
      std::memcpy(to, from + static_cast<std::size_t>(rows[n]) * bytes, bytes);
    else
      std::memset(to, 0, bytes);
}

}  // namespace

void embed_forward(const Context& c, const at::Tensor& ids, const at::Tensor& table, const at::Tensor& positions,
                   at::Tensor& x) {
  if (c.share.ranks > 1)
    share_embed_forward(c, ids, table, x);
  else
    at::index_select_out(x, table, 0, ids);
  if (!positions.defined() || c.share.rank != 0) return;
  if (c.positions.empty()) {
    x.view({c.shape.batch, c.shape.sequence, -1}).add_(positions.narrow(0, 0, c.shape.sequence));
    return;
  }
  check_positions(c, positions.size(0));
  for_each_run(c,
               [&](i64 row, i64 count, i64 first) { x.narrow(0, row, count).add_(positions.narrow(0, first, count)); });
}

void embed_backward(const Context& c, const at::Tensor& ids, const at::Tensor& d_x, at::Tensor& d_table,
                    at::Tensor& d_positions) {
  if (!c.accumulate) {
    d_table.zero_();
    if (d_positions.defined()) d_positions.zero_();
  }
  const bool narrow = own_narrow(d_x);
  const at::Tensor wide = narrow ? d_x : widened(c, d_x);
  const bool positions = d_positions.defined() && c.share.rank == 0;
  if (positions) check_positions(c, d_positions.size(0));
  if (own_kernels(d_x)) {
    const i64 d = d_x.size(1);
    const std::int32_t* rows = rows_of(c, ids, d_table.size(0));
    float* learned = positions ? d_positions.data_ptr<float>() : nullptr;
    const auto add = [&](i64 row, i64 count, i64 sequence, float* to) {
      if (narrow)
        narrow_kernels().embedding_backward(threads_of(c), count, sequence, d, rows + row, bits(d_x) + row * d,
                                            floats(d_table), to);
      else
        math::vector_kernels().embedding_backward(threads_of(c), count, sequence, d, rows + row, floats(wide) + row * d,
                                                  floats(d_table), to);
    };
    if (!positions || c.positions.empty()) return add(0, d_x.size(0), c.shape.sequence, learned);
    for_each_run(c, [&](i64 row, i64 count, i64 first) { add(row, count, count, learned + first * d); });
    return;
  }
  const auto add_positions = [&] {
    if (!positions) return;
    if (c.positions.empty()) {
      d_positions.narrow(0, 0, c.shape.sequence).add_(wide.view({c.shape.batch, c.shape.sequence, -1}).sum(0));
      return;
    }
    for_each_run(c, [&](i64 row, i64 count, i64 first) {
      d_positions.narrow(0, first, count).add_(wide.narrow(0, row, count));
    });
  };
  if (c.share.ranks > 1) {
    const auto [rows, here] = device_rows_of(c, ids, d_table.size(0));
    d_table.index_add_(0, rows, wide.mul(here));
    return add_positions();
  }
  d_table.index_add_(0, ids, wide);
  add_positions();
}

void linear_forward(const Context& c, const at::Tensor& x, const at::Tensor& residual, const Linear& w, at::Tensor& y) {
  const at::Tensor weight = w.weight_OI.t();
  if (c.share.ranks > 1 && residual.defined()) {
    y.zero_();
    own_rows(c, y).copy_(residual);
    if (w.bias_O.defined()) own_rows(c, y).add_(w.bias_O);
    product_added(y, y, x, weight);
    return;
  }
  if (residual.defined() && w.bias_O.defined()) {
    at::add_out(y, residual, w.bias_O);
    product_added(y, y, x, weight);
  } else if (residual.defined() || w.bias_O.defined()) {
    product_added(y, residual.defined() ? residual : w.bias_O, x, weight);
  } else {
    product(y, x, weight);
  }
}

void linear_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const Linear& w, at::Tensor& d_x,
                     Linear& d_linear) {
  if (c.of_input()) product(d_x, d_y, w.weight_OI);
  if (c.of_weights()) linear_gradient(c, d_y, x, own_rows(c, d_y), d_linear);
}

void norm_linear_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, const Linear& w,
                         NormSaved& saved, at::Tensor& y) {
  const Rewind rewind(c.scratch);
  at::Tensor normed = temporary(c, x, x.scalar_type(), x.sizes());
  norm_output(c, x, norm, saved, normed);
  linear_forward(c, normed, at::Tensor(), w, y);
}

// Computes the norm's output again for d_W; its gradient then overwrites it.
void norm_linear_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                          const NormWeights& norm, const Linear& w, at::Tensor& d_x, NormWeights& d_norm,
                          Linear& d_linear) {
  const Rewind rewind(c.scratch);
  at::Tensor normed = temporary(c, x, x.scalar_type(), x.sizes());
  if (c.of_weights()) {
    norm_output_again(c, x, norm, saved, normed);
    linear_gradient(c, d_y, normed, d_y, d_linear);
  }
  if (!c.of_input()) return;
  product(normed, d_y, w.weight_OI);
  norm_backward(c, normed, x, saved, norm, true, d_x, d_norm);
}

void rotate(const Context& c, const RopeTable& table, bool back, at::Tensor& qkv) {
  const auto& arch = c.arch;
  const i64 half = arch.head_dim / 2;
  if (own_narrow(qkv))
    return narrow_kernels().rope(threads_of(c), qkv.size(0), c.shape.sequence, arch.heads + arch.kv_heads,
                                 arch.head_dim, arch.qkv_size(), floats(table.cos_SD2), floats(table.sin_SD2), back,
                                 bits(qkv));
  const at::Tensor rotated = qkv.view({c.shape.batch, c.shape.sequence, arch.heads + 2 * arch.kv_heads, arch.head_dim})
                                 .narrow(2, 0, arch.heads + arch.kv_heads);
  const at::Tensor first = rotated.narrow(3, 0, half), second = rotated.narrow(3, half, half);
  const at::Tensor cosine = table.cos_SD2.unsqueeze(1), sine = table.sin_SD2.unsqueeze(1);
  const double sign = back ? -1.0 : 1.0;
  const Rewind rewind(c.scratch);
  const at::ScalarType type = accurate(qkv);
  at::Tensor a = temporary(c, qkv, type, first.sizes()), b = temporary(c, qkv, type, first.sizes()),
             turned = temporary(c, qkv, type, first.sizes());
  a.copy_(first);
  b.copy_(second);
  at::mul_out(turned, a, cosine).addcmul_(b, sine, -sign);
  first.copy_(turned);
  at::mul_out(turned, b, cosine).addcmul_(a, sine, sign);
  second.copy_(turned);
}

void attention_forward(const Context& c, const at::Tensor& qkv, at::Tensor& o, at::Tensor& lse) {
  if (own_attention(c, qkv)) {
    const Rewind rewind(c.scratch);
    const std::vector<float> slopes = slopes_of<float>(c);
    const math::AttentionShape shape = attention_shape(c, slopes);
    if (own_narrow(qkv))
      return math::narrow_attention_forward(shape, bits(qkv), bits(o), floats(lse),
                                            c.scratch.take_bytes(math::narrow_attention_forward_scratch(shape)));
    const at::Tensor wide = widened(c, qkv);
    at::Tensor result = low_precision(o) ? temporary(c, o, at::kFloat, o.sizes()) : o;
    math::attention_forward(shape, wide.data_ptr<float>(), result.data_ptr<float>(), lse.data_ptr<float>(),
                            c.scratch.take_bytes(math::attention_forward_scratch(shape)));
    if (low_precision(o)) o.copy_(result);
    return;
  }
  if (!qkv.device().is_cpu()) return document_attention_forward(c, qkv, o, lse);
  at::Tensor out = heads_of(c, o);
  const Packed p = unpack(c, qkv);
  std::optional<at::Tensor> mask;
  if (is_alibi(c)) mask = alibi_mask(c, accurate(qkv)).expand({c.shape.batch, -1, -1, -1});
  const auto [result, sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(p.q, p.k, p.v, 0.0, !mask, mask, scale_of(c));
  out.copy_(result);
  lse.copy_(sums);
}

void attention_backward(const Context& c, const at::Tensor& d_o, const at::Tensor& qkv, const at::Tensor& o,
                        const at::Tensor& lse, at::Tensor& d_qkv) {
  if (own_attention(c, qkv)) {
    const Rewind rewind(c.scratch);
    const std::vector<float> slopes = slopes_of<float>(c);
    const math::AttentionShape shape = attention_shape(c, slopes);
    if (own_narrow(qkv))
      return math::narrow_attention_backward(shape, bits(d_o), bits(qkv), bits(o), floats(lse), bits(d_qkv),
                                             c.scratch.take_bytes(math::narrow_attention_backward_scratch(shape)));
    const at::Tensor wide_g = widened(c, d_o), wide = widened(c, qkv), wide_o = widened(c, o);
    at::Tensor result = low_precision(qkv) ? temporary(c, qkv, at::kFloat, qkv.sizes()) : d_qkv;
    math::attention_backward(shape, wide_g.data_ptr<float>(), wide.data_ptr<float>(), wide_o.data_ptr<float>(),
                             lse.data_ptr<float>(), result.data_ptr<float>(),
                             c.scratch.take_bytes(math::attention_backward_scratch(shape)));
    if (low_precision(qkv)) d_qkv.copy_(result);
    return;
  }
  if (!qkv.device().is_cpu()) return document_attention_backward(c, d_o, qkv, o, lse, d_qkv);
  const Packed p = unpack(c, qkv), d = unpack(c, d_qkv);
  const at::Tensor g = heads_of(c, d_o), out = heads_of(c, o);
  std::optional<at::Tensor> mask;
  if (is_alibi(c)) mask = alibi_mask(c, accurate(qkv)).expand({c.shape.batch, -1, -1, -1});
  const auto grads = at::_scaled_dot_product_flash_attention_for_cpu_backward(g, p.q, p.k, p.v, out, lse, 0.0, !mask,
                                                                              mask, scale_of(c));
  d.q.copy_(std::get<0>(grads));
  d.k.copy_(std::get<1>(grads));
  d.v.copy_(std::get<2>(grads));
}

void activation_forward(const Context& c, const at::Tensor& up, at::Tensor& a) {
  if (own_narrow(up)) {
    if (c.arch.activation == arch::Activation::kGeluTanh)
      return narrow_kernels().gelu_tanh_forward(threads_of(c), a.numel(), bits(up), bits(a));
    return narrow_kernels().swiglu_forward(threads_of(c), a.size(0), a.size(1), bits(up), bits(a));
  }
  if (c.arch.activation == arch::Activation::kGeluTanh) {
    at::gelu_out(a, up, "tanh");
    return;
  }
  const i64 f = a.size(1);
  at::silu_out(a, up.narrow(1, 0, f));
  a.mul_(up.narrow(1, f, f));
}

void activation_backward(const Context& c, const at::Tensor& d_a, const at::Tensor& up, at::Tensor& d_up) {
  if (own_narrow(up)) {
    if (c.arch.activation == arch::Activation::kGeluTanh)
      return narrow_kernels().gelu_tanh_backward(threads_of(c), d_a.numel(), bits(d_a), bits(up), bits(d_up));
    return narrow_kernels().swiglu_backward(threads_of(c), d_a.size(0), d_a.size(1), bits(d_a), bits(up), bits(d_up));
  }
  if (c.arch.activation == arch::Activation::kGeluTanh) {
    at::gelu_backward_out(d_up, d_a, up, "tanh");
    return;
  }
  const i64 f = d_a.size(1);
  const at::Tensor gate = up.narrow(1, 0, f), linear = up.narrow(1, f, f);
  at::Tensor d_gate = d_up.narrow(1, 0, f), d_linear = d_up.narrow(1, f, f);
  at::silu_out(d_linear, gate);
  d_linear.mul_(d_a);
  at::mul_out(d_gate, d_a, linear);
  at::silu_backward_out(d_gate, d_gate, gate);
}

void norm_forward(const Context& c, const at::Tensor& x, const NormWeights& norm, NormSaved& saved, at::Tensor& y) {
  norm_output(c, x, norm, saved, y);
}

namespace {

// d_x (+)= value, rounded once. `scrap` is a wide temporary of the same size.
void add_rounded(bool add, at::Tensor& d_x, at::Tensor& value, at::Tensor& scrap) {
  if (add && low_precision(d_x)) {
    scrap.copy_(d_x);
    value.add_(scrap);
  } else if (add) {
    d_x.add_(value);
    return;
  }
  d_x.copy_(value);
}

// With u = x rstd and v = d_y w: d_x = rstd (v - u mean(v u)), d_w = sum of d_y u.
void rms_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                  const NormWeights& norm, bool add, at::Tensor& d_x, NormWeights& d_norm) {
  const at::ScalarType type = accurate(x);
  const at::Tensor rstd = saved.rstd_N.unsqueeze(1);
  at::Tensor unit = temporary(c, x, type, x.sizes()), value = temporary(c, x, type, x.sizes()),
             scrap = temporary(c, x, type, x.sizes());
  unit.copy_(x);
  unit.mul_(rstd);
  scrap.copy_(d_y);
  if (d_norm.weight_d.defined()) {
    const Rewind rewind(c.scratch);
    at::Tensor sums = temporary(c, x, type, {x.size(1)});
    at::mul_out(value, scrap, unit);
    at::sum_out(sums, value, {0});
    add_into(c.accumulate, d_norm.weight_d, sums);
  }
  value.copy_(scrap);
  if (norm.weight_d.defined()) {
    const Rewind rewind(c.scratch);
    value.mul_(widened(c, norm.weight_d));
  }
  at::Tensor mean = temporary(c, x, type, {x.size(0), 1});
  at::mul_out(scrap, value, unit);
  at::mean_out(mean, scrap, {1}, true);
  at::mul_out(scrap, unit, mean);
  value.sub_(scrap).mul_(rstd);
  add_rounded(add, d_x, value, scrap);
}

}  // namespace

void norm_backward(const Context& c, const at::Tensor& d_y, const at::Tensor& x, const NormSaved& saved,
                   const NormWeights& norm, bool add, at::Tensor& d_x, NormWeights& d_norm) {
  const i64 d = x.size(1);
  const Rewind rewind(c.scratch);
  if (add && c.share.ranks > 1) {  // d_x is added to in the rank's rows only; another rank adds to the other rows
    const i64 first = c.share.residual_rows ? 0 : c.share.first_row, rows = c.share.residual_rows ? 0 : c.share.rows;
    d_x.narrow(0, 0, first).zero_();
    d_x.narrow(0, first + rows, d_x.size(0) - first - rows).zero_();
  }
  if (rms(c) && x.is_cuda()) {
    const auto [d_in, d_w] = at::_fused_rms_norm_backward(d_y, x, {d}, saved.rstd_N.unsqueeze(1),
                                                          optional(norm.weight_d), {true, norm.weight_d.defined()});
    if (d_norm.weight_d.defined()) add_into(c.accumulate, d_norm.weight_d, d_w);
    if (add)
      d_x.add_(d_in);
    else
      d_x.copy_(d_in);
    return;
  }
  if (own_narrow(x)) {
    const i64 vectors = (d_norm.weight_d.defined() ? 1 : 0) + (d_norm.bias_d.defined() ? 1 : 0);
    auto* partial = static_cast<float*>(c.scratch.take_bytes(4 * threads_of(c) * vectors * d));
    return narrow_kernels().norm_backward(threads_of(c), x.size(0), d, bits(d_y), bits(x), floats(saved.rstd_N),
                                          rms(c) ? nullptr : floats(saved.mean_N), bits(norm.weight_d), add, bits(d_x),
                                          c.accumulate, floats(d_norm.weight_d), floats(d_norm.bias_d), partial);
  }
  if (rms(c)) return rms_backward(c, d_y, x, saved, norm, add, d_x, d_norm);
  at::Tensor g = widened(c, d_y);
  auto [d_in, d_w, d_b] = at::native_layer_norm_backward(
      g, widened(c, x), {d}, saved.mean_N.unsqueeze(1), saved.rstd_N.unsqueeze(1), optional(widened(c, norm.weight_d)),
      optional(widened(c, norm.bias_d)), {true, norm.weight_d.defined(), norm.bias_d.defined()});
  if (d_norm.weight_d.defined()) add_into(c.accumulate, d_norm.weight_d, d_w);
  if (d_norm.bias_d.defined()) add_into(c.accumulate, d_norm.bias_d, d_b);
  add_rounded(add, d_x, d_in, g);
}

namespace {

// Returns logits in fp32 or wider.
at::Tensor wide_logits(const Context& c, const at::Tensor& y, const at::Tensor& head) {
  if (low_precision(y) && y.is_cuda()) return at::mm(y, head.t(), at::kFloat);
  at::Tensor logits = temporary(c, y, y.scalar_type(), {y.size(0), head.size(0)});
  product(logits, y, head.t());
  return widened(c, logits);
}

void check_labels(const at::Tensor& labels, i64 vocabulary) {
  const auto* label = labels.data_ptr<std::int32_t>();
  for (i64 i = 0; i < labels.numel(); ++i)
    MOLEN_CHECK(label[i] >= -1 && label[i] < vocabulary, "label {} at place {} is not in the vocabulary of {}",
                label[i], i, vocabulary);
}

// Computes losses; with `gradient`, logits become (softmax - onehot) * scale.
void cross_entropy(const Context& c, bool gradient, double scale, const at::Tensor& labels, at::Tensor& logits,
                   at::Tensor& losses) {
  if (own_kernels(logits)) {
    check_labels(labels, logits.size(1));
    math::vector_kernels().cross_entropy(threads_of(c), logits.size(0), logits.size(1), labels.data_ptr<std::int32_t>(),
                                         gradient, scale, logits.data_ptr<float>(), losses.data_ptr<float>());
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

namespace {

// Computes losses of a chunk in 16 bits on the host, widening one row (in fp16 a block of rows) at a time; with
// `gradient`, logits become their gradient.
void narrow_cross_entropy(const Context& c, bool gradient, double scale, const at::Tensor& labels, at::Tensor& logits,
                          at::Tensor& losses) {
  const Rewind rewind(c.scratch);
  if (own_narrow(logits)) {
    check_labels(labels, logits.size(1));
    auto* space = static_cast<float*>(c.scratch.take_bytes(4 * threads_of(c) * logits.size(1)));
    return narrow_kernels().cross_entropy(threads_of(c), logits.size(0), logits.size(1),
                                          labels.data_ptr<std::int32_t>(), gradient, scale, bits(logits),
                                          floats(losses), space);
  }
  const i64 rows = logits.size(0), block = arch::widened_rows(rows, logits.size(1));
  const at::Tensor space = temporary(c, logits, at::kFloat, {block, logits.size(1)});
  for (i64 first = 0; first < rows; first += block) {
    const i64 n = std::min(block, rows - first);
    at::Tensor some = logits.narrow(0, first, n), wide = space.narrow(0, 0, n), loss = losses.narrow(0, first, n);
    wide.copy_(some);
    cross_entropy(c, gradient, scale, labels.narrow(0, first, n), wide, loss);
    if (gradient) some.copy_(wide);
  }
}

// Computes the losses of a chunk; with `gradient`, returns the gradient of its logits in the compute dtype.
at::Tensor chunk_losses(const Context& c, bool gradient, double scale, const at::Tensor& y, const at::Tensor& labels,
                        const at::Tensor& head, at::Tensor& losses) {
  if (low_precision(y) && y.device().is_cpu()) {
    at::Tensor logits = temporary(c, y, y.scalar_type(), {y.size(0), head.size(0)});
    product(logits, y, head.t());
    narrow_cross_entropy(c, gradient, scale, labels, logits, losses);
    return logits;
  }
  at::Tensor logits = wide_logits(c, y, head);
  cross_entropy(c, gradient, scale, labels, logits, losses);
  return logits.to(y.scalar_type());
}

}  // namespace

namespace {

// d_y = d_logits W. These sums are as long as the vocabulary.
void head_input_gradient(const Context& c, at::Tensor& d_y, const at::Tensor& d_logits, const at::Tensor& head) {
  const i64 rows = d_logits.size(0), vocabulary = d_logits.size(1), d = head.size(1);
  const Rewind rewind(c.scratch);
  if (own_narrow(d_logits) && vocabulary >= math::kLongProduct) {
    void* space = c.scratch.take_bytes(math::long_product_scratch(threads_of(c), rows, d, vocabulary));
    if (math::own_products())
      return math::long_product(threads_of(c), rows, d, vocabulary, bits(d_logits), bits(head), bits(d_y), space);
  }
  product(d_y, d_logits, head);
}

}  // namespace

void head_loss(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
               double grad_scale, at::Tensor& losses, at::Tensor& d_y, at::Tensor& d_head) {
  const Rewind rewind(c.scratch);
  const at::Tensor d_logits = chunk_losses(c, true, grad_scale, y, labels, head, losses);
  head_input_gradient(c, d_y, d_logits, head);
  weight_gradient(c, d_head, d_logits, y);
}

namespace {

// On a device, combines all ranks' sums to the logarithm of the whole sum and to the losses.
at::Tensor device_combine(const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  const at::Tensor all = sums.narrow(1, 0, losses.size(0));
  at::Tensor lse = at::logsumexp(all.select(2, 0), {0});
  losses.copy_(lse.sub(all.select(2, 1).sum(0)).mul_(labels.ge(0)));
  return lse;
}

void device_gradient(const Context& c, const at::Tensor& sums, const at::Tensor& labels, double grad_scale,
                     at::Tensor& logits, at::Tensor& losses) {
  const at::Tensor lse = device_combine(sums, labels, losses);
  logits.sub_(lse.unsqueeze(1)).exp_();
  const auto [columns, here] = device_rows_of(c, labels, logits.size(1));
  logits.scatter_add_(1, columns.to(at::kLong).unsqueeze(1), here.to(logits.scalar_type()).neg_());
  logits.mul_(labels.ge(0).to(logits.scalar_type()).mul_(grad_scale).unsqueeze(1));
}

// Calls f with the element type of `values`, which are on the host.
template <class F>
void on_host(const at::Tensor& values, const F& f) {
  if (values.scalar_type() == at::kDouble)  // NOLINT(bugprone-branch-clone): the types differ
    f(double());
  else
    f(float());
}

}  // namespace

void head_logits_sums(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                      at::Tensor& logits, at::Tensor& sums) {
  aten::head_logits(c, y, head, logits);
  if (!logits.device().is_cpu()) {
    sums.select(1, 0).copy_(at::logsumexp(logits, {1}));
    const auto [columns, here] = device_rows_of(c, labels, head.size(0));
    sums.select(1, 1).copy_(logits.gather(1, columns.to(at::kLong).unsqueeze(1)).mul_(here).squeeze(1));
    return;
  }
  const std::int32_t* label = checked_ids(labels, -1, c.share.vocabulary_all);
  on_host(logits, [&]<class T>(T) {
    math::reference::shared_sums(std::max(c.shape.threads, 1), y.size(0), head.size(0), c.share.vocabulary_first, label,
                                 logits.data_ptr<T>(), sums.data_ptr<T>());
  });
}

void head_shared_loss(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& losses) {
  if (!losses.device().is_cpu()) {
    device_combine(sums, labels, losses);
    return;
  }
  on_host(losses, [&]<class T>(T) {
    combine_sums<T>(c, sums, losses.size(0), checked_ids(labels, -1, c.share.vocabulary_all), losses.data_ptr<T>(),
                    nullptr);
  });
}

void head_shared_gradient(const Context& c, const at::Tensor& sums, const at::Tensor& labels, at::Tensor& logits,
                          const at::Tensor& y, const at::Tensor& head, double grad_scale, at::Tensor& losses,
                          at::Tensor& d_y, at::Tensor& d_head) {
  const Rewind rewind(c.scratch);
  if (logits.device().is_cpu())
    on_host(logits, [&]<class T>(T) {
      const auto t = row_targets<T>(c, sums, labels, head.size(0), grad_scale, losses);
      math::reference::shared_gradient(std::max(c.shape.threads, 1), y.size(0), head.size(0), t.column, t.lse, t.scale,
                                       logits.data_ptr<T>());
    });
  else
    device_gradient(c, sums, labels, grad_scale, logits, losses);
  at::Tensor d_logits = logits;
  if (low_precision(y)) {
    d_logits = temporary(c, y, y.scalar_type(), logits.sizes());
    d_logits.copy_(logits);
  }
  head_input_gradient(c, d_y, d_logits, head);
  weight_gradient(c, d_head, d_logits, y);
}

void head_loss_forward(const Context& c, const at::Tensor& y, const at::Tensor& labels, const at::Tensor& head,
                       at::Tensor& losses) {
  const Rewind rewind(c.scratch);
  chunk_losses(c, false, 1.0, y, labels, head, losses);
}

void head_logits(const Context& c, const at::Tensor& y, const at::Tensor& head, at::Tensor& logits) {
  const Rewind rewind(c.scratch);
  if (logits.scalar_type() == y.scalar_type() && !low_precision(y)) {
    product(logits, y, head.t());
  } else if (low_precision(y) && y.is_cuda()) {
    logits.copy_(at::mm(y, head.t(), at::kFloat));
  } else {
    at::Tensor narrow = temporary(c, y, y.scalar_type(), {y.size(0), head.size(0)});
    product(narrow, y, head.t());
    logits.copy_(narrow);
  }
}

}  // namespace molen::model::aten
