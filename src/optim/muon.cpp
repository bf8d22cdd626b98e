// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; code: github.com/KellerJordan/Muon): each matrix of a
// layer moves along its momentum, made orthogonal by a Newton-Schulz iteration. All else follows AdamW.
//   m = lerp(m, g, 1-b);  u = newton_schulz(lerp(g, m, b));  p = p (1 - lr wd) - lr s u,  b = Options::momentum
// The scale s is sqrt(max(1, rows/columns)), as in that code, or 0.2 sqrt(max(rows, columns)): then an update is as
// large as AdamW's, and both share one learning rate (Liu et al. 2025, "Muon is Scalable for LLM Training",
// arXiv 2502.16982, equation 4). The iteration runs in the type of the states, where the published code rounds to bf16.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "math/allocation.h"
#include "optim/adamw.h"
#include "optim/blocks.h"
#include "optim/sum_squares.h"
#include "optim/update.h"

namespace molen::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // p(x) = a x + b x^3 + c x^5, on singular values
constexpr int kIterations = 5;
constexpr double kNormEps = 1e-7;

at::Tensor scratch_matrix(const Update& u, const at::Tensor& like, std::int64_t rows, std::int64_t columns) {
  if (!like.device().is_cpu()) return at::empty({rows, columns}, like.options());
  const std::int64_t bytes = rows * columns * static_cast<std::int64_t>(like.element_size());
  return at::from_blob(u.scratch->take_bytes(bytes), {rows, columns}, like.options());
}

// Calls f on a null pointer of the type of a tensor's elements.
template <class F>
void of_type(const at::Tensor& t, const F& f) {
  if (t.scalar_type() == at::kDouble)
    f(static_cast<double*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

void divide_by_norm(const Update& u, at::Tensor& x) {
  if (!x.device().is_cpu()) {
    x.div_(x.norm() + kNormEps);
    return;
  }
  of_type(x, [&]<class T>(T* values) {
    values = x.data_ptr<T>();
    const T norm = static_cast<T>(std::sqrt(sum_squares(values, x.numel(), u.threads)) + kNormEps);
    for_blocks(x.numel(), u.threads, [&](std::int64_t at, std::int64_t n, std::int64_t) {
      for (std::int64_t k = at; k < at + n; ++k) values[k] /= norm;
    });
  });
}

// Returns a matrix in scratch: `direction` with its singular values brought near 1. Overwrites `direction`.
at::Tensor newton_schulz(const Update& u, at::Tensor direction) {
  divide_by_norm(u, direction);
  const bool tall = direction.size(0) > direction.size(1);
  at::Tensor x = direction, y = scratch_matrix(u, x, x.size(0), x.size(1));
  if (tall) {  // so that the Gram matrix is the smaller of the two
    x = x.t();
    y = y.t();
  }
  at::Tensor gram = scratch_matrix(u, direction, x.size(0), x.size(0)),
             polynomial = scratch_matrix(u, direction, x.size(0), x.size(0));
  const math::LibraryCall call;
  for (int i = 0; i < kIterations; ++i) {
    at::mm_out(gram, x, x.t());
    at::addmm_out(polynomial, gram, gram, gram, kB, kC);
    at::addmm_out(y, x, polynomial, x, kA, 1.0);
    std::swap(x, y);
  }
  return tall ? x.t() : x;
}

// Updates the momentum, and writes to `direction` the matrix that newton_schulz takes.
void make_direction(const Update& u, const Piece& piece, at::Tensor direction) {
  at::Tensor momentum = piece.states[0];
  const double beta = u.options.momentum;
  if (!momentum.device().is_cpu()) {
    at::mul_out(direction, piece.grad, u.grad_scale);
    momentum.lerp_(direction, 1.0 - beta);
    direction.lerp_(momentum, beta);
    return;
  }
  of_type(momentum, [&]<class T>(T* m) {
    m = momentum.data_ptr<T>();
    T* d = direction.data_ptr<T>();
    const T* g = piece.grad.const_data_ptr<T>();
    const T scale = static_cast<T>(u.grad_scale.const_data_ptr<double>()[0]), keep = static_cast<T>(beta),
            add = static_cast<T>(1.0 - beta);
    for_blocks(piece.grad.numel(), u.threads, [&](std::int64_t at, std::int64_t n, std::int64_t) {
      for (std::int64_t k = at; k < at + n; ++k) {
        const T gk = g[k] * scale;
        m[k] = keep * m[k] + add * gk;
        d[k] = keep * m[k] + add * gk;
      }
    });
  });
}

at::Tensor part_of(const at::Tensor& matrix, const Block& block) {
  return matrix.narrow(0, block.row, block.values.size(0)).narrow(1, block.column, block.values.size(1));
}

// Updates this rank's part of the weights.
void apply(const Update& u, const Piece& piece, const at::Tensor& direction, const Block& own) {
  const Options& o = u.options;
  const at::Tensor orthogonal = newton_schulz(u, direction);
  const auto rows = static_cast<double>(piece.rows), columns = static_cast<double>(piece.columns);
  const double scale =
      o.match_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  const double keep = piece.decay ? 1.0 - o.lr * o.weight_decay : 1.0;
  at::Tensor param = piece.param.view(own.values.sizes());
  const at::Tensor moved = part_of(orthogonal, own);
  if (!param.device().is_cpu()) {
    param.mul_(keep).add_(moved, -o.lr * scale);
    return;
  }
  // The result may be a transposed view.
  of_type(param, [&]<class T>(T* p) {
    p = param.data_ptr<T>();
    const T* by = moved.const_data_ptr<T>();
    const std::int64_t width = param.size(1), down = moved.stride(0), right = moved.stride(1);
    for_blocks(param.numel(), u.threads, [&](std::int64_t at, std::int64_t n, std::int64_t) {
      for (std::int64_t k = at; k < at + n; ++k)
        p[k] = p[k] * static_cast<T>(keep) - static_cast<T>(o.lr * scale) * by[k / width * down + k % width * right];
    });
  });
}

}  // namespace

void muon(const Update& u, const Piece& piece) {
  if (piece.rows == 0) {
    Options rest = u.options;
    rest.lr *= u.options.rest_lr;
    return adamw({rest, u.step, u.grad_scale, u.threads, u.scratch}, piece);
  }
  if (piece.direction.defined()) return make_direction(u, piece, piece.direction);
  u.scratch->reset();
  const at::Tensor whole = scratch_matrix(u, piece.grad, piece.rows, piece.columns);
  if (piece.blocks.empty()) {
    make_direction(u, piece, whole.view({-1}));
    return apply(u, piece, whole, {0, 0, whole, true});
  }
  const Block* own = nullptr;
  for (const Block& block : piece.blocks) {
    part_of(whole, block).copy_(block.values);
    if (block.own) own = &block;
  }
  apply(u, piece, whole, *own);
}

}  // namespace molen::optim
