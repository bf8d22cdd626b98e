// Norms of queries and keys on ATen's operators.
#include <ATen/ATen.h>

#include "math/allocation.h"
#include "model/aten_temporaries.h"
#include "model/parts_aten.h"
#include "model/tensor_slice.h"

namespace molen::model::aten {
namespace {

using i64 = std::int64_t;
using math::Rewind;

// Returns one kind of groups of q|k|v as a view of the rows, [N, groups, length].
at::Tensor groups_of(const at::Tensor& rows, i64 first, const math::NormGroups& n) {
  return rows.narrow(1, first, n.groups * n.length).view({rows.size(0), n.groups, n.length});
}

// rstd = 1/sqrt(mean(x^2) + eps) of rows of `wide`. `square` is a temporary as large as `wide`.
void rms_rstd(const Context& c, const at::Tensor& wide, at::Tensor& square, at::Tensor& rstd) {
  at::mul_out(square, wide, wide);
  at::mean_out(rstd, square, {1}, true);
  rstd.add_(c.arch.norm_eps).rsqrt_();
}

void norm_groups(const Context& c, const at::Tensor& x, const at::Tensor& w, const at::Tensor& y) {
  const Rewind rewind(c.scratch);
  const i64 groups = x.size(0) * x.size(1), length = x.size(2);
  at::Tensor unit = temporary(c, x, accurate(x), {groups, length}),
             square = temporary(c, x, accurate(x), {groups, length}), rstd = temporary(c, x, accurate(x), {groups, 1});
  unit.view(x.sizes()).copy_(x);
  rms_rstd(c, unit, square, rstd);
  unit.mul_(rstd).mul_(widened(c, w));
  y.copy_(unit.view(x.sizes()));
}

// With u = x rstd and g = d w: d becomes rstd (g - u mean(g u)), and d_w (+)= the sum of d u.
void norm_groups_backward(const Context& c, const at::Tensor& x, const at::Tensor& w, const at::Tensor& d,
                          at::Tensor& d_w) {
  const Rewind rewind(c.scratch);
  const at::ScalarType type = accurate(x);
  const i64 groups = x.size(0) * x.size(1), length = x.size(2);
  at::Tensor unit = temporary(c, x, type, {groups, length}), value = temporary(c, x, type, {groups, length}),
             scrap = temporary(c, x, type, {groups, length}), rstd = temporary(c, x, type, {groups, 1});
  unit.view(x.sizes()).copy_(x);
  rms_rstd(c, unit, value, rstd);
  unit.mul_(rstd);
  scrap.view(x.sizes()).copy_(d);
  {
    const Rewind again(c.scratch);
    at::Tensor sums = temporary(c, x, type, {length});
    at::mul_out(value, scrap, unit);
    at::sum_out(sums, value, {0});
    add_into(c.accumulate, d_w, sums);
  }
  {
    const Rewind again(c.scratch);
    scrap.mul_(widened(c, w));
  }
  at::Tensor mean = temporary(c, x, type, {groups, 1});
  at::mul_out(value, scrap, unit);
  at::mean_out(mean, value, {1}, true);
  scrap.sub_(unit.mul_(mean)).mul_(rstd);
  d.copy_(scrap.view(x.sizes()));
}

}  // namespace

void qk_norm_forward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& normed) {
  const math::QkNormSizes n = qk_norm_sizes(c);
  if (own_narrow(projected))
    return narrow_kernels().qk_norm_forward(threads_of(c), projected.size(0), n, c.arch.norm_eps, bits(projected),
                                            bits(w.query), bits(w.key), bits(normed));
  const i64 key = c.arch.query_size(), value = key + c.arch.kv_size();
  norm_groups(c, groups_of(projected, 0, n.query), w.query, groups_of(normed, 0, n.query));
  norm_groups(c, groups_of(projected, key, n.key), w.key, groups_of(normed, key, n.key));
  normed.narrow(1, value, c.arch.kv_size()).copy_(projected.narrow(1, value, c.arch.kv_size()));
}

void qk_norm_backward(const Context& c, const at::Tensor& projected, const QkNormWeights& w, at::Tensor& d_qkv,
                      QkNormWeights& d_norms) {
  const math::QkNormSizes n = qk_norm_sizes(c);
  if (own_narrow(projected))
    return narrow_kernels().qk_norm_backward(threads_of(c), projected.size(0), n, c.arch.norm_eps, bits(projected),
                                             bits(w.query), bits(w.key), bits(d_qkv), c.accumulate,
                                             floats(d_norms.query), floats(d_norms.key),
                                             c.scratch.take<float>(threads_of(c) * (n.query.length + n.key.length)));
  const i64 key = c.arch.query_size();
  norm_groups_backward(c, groups_of(projected, 0, n.query), w.query, groups_of(d_qkv, 0, n.query), d_norms.query);
  norm_groups_backward(c, groups_of(projected, key, n.key), w.key, groups_of(d_qkv, key, n.key), d_norms.key);
}

}  // namespace molen::model::aten
