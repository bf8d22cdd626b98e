#include "optim/adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "optim/blocks.h"

namespace molen::optim {
namespace {

template <class T>
struct Coefficients {
  T keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root, eps, grad_scale;
};

template <class T>
MOLEN_INLINE void update_block(const Coefficients<T>& c, std::int64_t n, const T* __restrict g, T* __restrict p,
                               T* __restrict m, T* __restrict v) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T gi = g[i] * c.grad_scale;
    const T mi = c.beta1 * m[i] + c.one_minus_beta1 * gi;
    const T vi = c.beta2 * v[i] + c.one_minus_beta2 * gi * gi;
    m[i] = mi;
    v[i] = vi;
    p[i] = p[i] * c.keep - c.step_size * mi / (std::sqrt(vi) * c.inverse_root + c.eps);
  }
}
MOLEN_VECTOR_TARGETS void update_f32(const Coefficients<float>& c, std::int64_t n, const float* g, float* p, float* m,
                                     float* v) {
  update_block(c, n, g, p, m, v);
}
MOLEN_VECTOR_TARGETS void update_f64(const Coefficients<double>& c, std::int64_t n, const double* g, double* p,
                                     double* m, double* v) {
  update_block(c, n, g, p, m, v);
}

void adamw_on_device(const Update& u, const Piece& piece) {
  // Does not use the fused op's own scale, because that is fp32, and because the op overwrites the gradient with the
  // scaled one.
  const at::Tensor grad = piece.grad.mul(u.grad_scale);
  const at::Tensor step = at::full({}, static_cast<double>(u.step), grad.options().dtype(at::kFloat));
  const double decay = piece.decay ? u.options.weight_decay : 0.0;
  at::_fused_adamw_({piece.param}, {grad}, {piece.states[0]}, {piece.states[1]}, {}, {step}, u.options.lr,
                    u.options.beta1, u.options.beta2, decay, u.options.eps, false, false);
}

template <class T>
void update_blocks(const Coefficients<T>& c, std::int64_t count, int threads, const T* grad, T* param, T* m, T* v) {
  for_blocks(count, threads, [&](std::int64_t at, std::int64_t n, std::int64_t) {
    if constexpr (sizeof(T) == 4)
      update_f32(c, n, grad + at, param + at, m + at, v + at);
    else
      update_f64(c, n, grad + at, param + at, m + at, v + at);
  });
}

}  // namespace

template <class T>
void adamw_update(const Options& o, std::int64_t step, bool decay, double grad_scale, std::int64_t count, int threads,
                  const T* grad, T* param, T* m, T* v) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(step));
  const Coefficients<T> c{static_cast<T>(decay ? 1.0 - o.lr * o.weight_decay : 1.0),
                          static_cast<T>(o.beta1),
                          static_cast<T>(1.0 - o.beta1),
                          static_cast<T>(o.beta2),
                          static_cast<T>(1.0 - o.beta2),
                          static_cast<T>(o.lr / correction1),
                          static_cast<T>(1.0 / std::sqrt(correction2)),
                          static_cast<T>(o.eps),
                          static_cast<T>(grad_scale)};
  update_blocks(c, count, threads, grad, param, m, v);
}

template void adamw_update<float>(const Options&, std::int64_t, bool, double, std::int64_t, int, const float*, float*,
                                  float*, float*);
template void adamw_update<double>(const Options&, std::int64_t, bool, double, std::int64_t, int, const double*,
                                   double*, double*, double*);

void adamw(const Update& u, const Piece& piece) {
  if (!piece.grad.device().is_cpu()) return adamw_on_device(u, piece);
  const double scale = u.grad_scale.const_data_ptr<double>()[0];
  const auto update = [&]<class T>(const T* grad) {
    adamw_update<T>(u.options, u.step, piece.decay, scale, piece.grad.numel(), u.threads, grad,
                    piece.param.data_ptr<T>(), piece.states[0].data_ptr<T>(), piece.states[1].data_ptr<T>());
  };
  if (piece.grad.scalar_type() == at::kDouble)
    update(piece.grad.const_data_ptr<double>());
  else
    update(piece.grad.const_data_ptr<float>());
}

}  // namespace molen::optim
