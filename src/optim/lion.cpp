// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2): the sign of
// an interpolation between gradient and momentum, so every weight moves by the same amount.
//   u = sign(b1 m + (1-b1) g);  p = p - lr (u + wd p);  m = b2 m + (1-b2) g
// The update is element-wise, so any split of the range gives the same bits. The authors advise a learning rate that is
// 3 to 10 times smaller than AdamW's, and a weight decay that is larger by the same factor.
#include <ATen/ATen.h>

#include "optim/blocks.h"
#include "optim/update.h"

namespace molen::optim {
namespace {

template <class T>
struct LionCoefficients {
  T keep, beta1, one_minus_beta1, beta2, one_minus_beta2, lr, grad_scale;
};

template <class T>
MOLEN_INLINE void lion_block(const LionCoefficients<T>& c, std::int64_t n, const T* __restrict g, T* __restrict p,
                             T* __restrict m) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T gi = g[i] * c.grad_scale;
    const T direction = c.beta1 * m[i] + c.one_minus_beta1 * gi;
    const T sign = static_cast<T>(direction > 0) - static_cast<T>(direction < 0);
    m[i] = c.beta2 * m[i] + c.one_minus_beta2 * gi;
    p[i] = p[i] * c.keep - c.lr * sign;
  }
}
MOLEN_VECTOR_TARGETS void lion_f32(const LionCoefficients<float>& c, std::int64_t n, const float* g, float* p,
                                   float* m) {
  lion_block(c, n, g, p, m);
}
MOLEN_VECTOR_TARGETS void lion_f64(const LionCoefficients<double>& c, std::int64_t n, const double* g, double* p,
                                   double* m) {
  lion_block(c, n, g, p, m);
}

template <class T, class Block>
void lion_on_host(const Update& u, const Piece& piece, const Block& block) {
  const Options& o = u.options;
  const LionCoefficients<T> c{static_cast<T>(piece.decay ? 1.0 - o.lr * o.weight_decay : 1.0),
                              static_cast<T>(o.beta1),
                              static_cast<T>(1.0 - o.beta1),
                              static_cast<T>(o.beta2),
                              static_cast<T>(1.0 - o.beta2),
                              static_cast<T>(o.lr),
                              static_cast<T>(u.grad_scale.const_data_ptr<double>()[0])};
  const T* g = piece.grad.const_data_ptr<T>();
  T *p = piece.param.data_ptr<T>(), *m = piece.states[0].data_ptr<T>();
  for_blocks(piece.grad.numel(), u.threads,
             [&](std::int64_t at, std::int64_t n, std::int64_t) { block(c, n, g + at, p + at, m + at); });
}

void lion_on_device(const Update& u, const Piece& piece) {
  const Options& o = u.options;
  const at::Tensor grad = piece.grad.mul(u.grad_scale);
  at::Tensor m = piece.states[0], param = piece.param;
  const at::Tensor sign = m.mul(o.beta1).add_(grad, 1.0 - o.beta1).sign_();
  m.mul_(o.beta2).add_(grad, 1.0 - o.beta2);
  if (piece.decay) param.mul_(1.0 - o.lr * o.weight_decay);
  param.add_(sign, -o.lr);
}

}  // namespace

void lion(const Update& u, const Piece& piece) {
  if (!piece.grad.device().is_cpu()) return lion_on_device(u, piece);
  if (piece.grad.scalar_type() == at::kDouble)
    lion_on_host<double>(u, piece, lion_f64);
  else
    lion_on_host<float>(u, piece, lion_f32);
}

}  // namespace molen::optim
