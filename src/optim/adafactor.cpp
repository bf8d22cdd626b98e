// Adafactor (Shazeer and Stern 2018, arXiv 1804.04235, algorithms 4 and 5, in the form of torch.optim.Adafactor): the
// second moment of a matrix is estimated from its means over rows and over columns.
//   b = 1 - t^beta2_decay;  r = b r + (1-b) mean over columns of g^2;  c = b c + (1-b) mean over rows of g^2
//   v = r c / max(mean of r, eps1);  u = g / max(sqrt(v), eps1);  a = min(lr, 1/sqrt(t)) max(eps2, RMS(p))
//   p = p (1 - lr wd) - a u / max(1, RMS(u) / update_clip)
// The second moment of a vector is kept for each element. Tensor ranks gather gradients and squares of their weights,
// and each computes the same means.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "optim/blocks.h"
#include "optim/sum_squares.h"
#include "optim/update.h"

namespace molen::optim {
namespace {

constexpr std::int64_t kStrip = 256;  // columns that one thread sums at a time

// Keeps eight interleaved partial sums, as sum_squares does.
template <class F>
MOLEN_INLINE double sum_of(std::int64_t n, const F& f) {
  double partial[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) partial[k] += f(i + k);
  double sum = 0;
  for (const double value : partial) sum += value;
  for (; i < n; ++i) sum += f(i);
  return sum;
}

template <class T>
MOLEN_INLINE void add_squares(T scale, std::int64_t n, const T* __restrict g, double* __restrict sums) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto gi = static_cast<double>(g[i] * scale);
    sums[i] += gi * gi;
  }
}
MOLEN_VECTOR_TARGETS void add_squares_f32(float scale, std::int64_t n, const float* g, double* sums) {
  add_squares(scale, n, g, sums);
}
MOLEN_VECTOR_TARGETS void add_squares_f64(double scale, std::int64_t n, const double* g, double* sums) {
  add_squares(scale, n, g, sums);
}

// Numbers that are the same for all rows of an update.
template <class T>
struct Row {
  T scale;   // factor of the gradient
  T factor;  // of the second moments of the columns
  T floor;   // lower bound of the second moment
};

template <class T>
MOLEN_INLINE T update_of(const Row<T>& row, T g, T v) {
  return g * row.scale / std::sqrt(std::max(row.factor * v, row.floor));
}
template <class T>
MOLEN_INLINE double update_squares(const Row<T>& row, std::int64_t n, const T* __restrict g, const T* __restrict v) {
  return sum_of(n, [&](std::int64_t i) {
    const auto u = static_cast<double>(update_of(row, g[i], v[i]));
    return u * u;
  });
}
MOLEN_VECTOR_TARGETS double update_squares_f32(const Row<float>& row, std::int64_t n, const float* g, const float* v) {
  return update_squares(row, n, g, v);
}
MOLEN_VECTOR_TARGETS double update_squares_f64(const Row<double>& row, std::int64_t n, const double* g,
                                               const double* v) {
  return update_squares(row, n, g, v);
}

template <class T>
MOLEN_INLINE void move_row(const Row<T>& row, T keep, T step, std::int64_t n, const T* __restrict g,
                           const T* __restrict v, T* __restrict p) {
  for (std::int64_t i = 0; i < n; ++i) p[i] = p[i] * keep - step * update_of(row, g[i], v[i]);
}
MOLEN_VECTOR_TARGETS void move_f32(const Row<float>& row, float keep, float step, std::int64_t n, const float* g,
                                   const float* v, float* p) {
  move_row(row, keep, step, n, g, v, p);
}
MOLEN_VECTOR_TARGETS void move_f64(const Row<double>& row, double keep, double step, std::int64_t n, const double* g,
                                   const double* v, double* p) {
  move_row(row, keep, step, n, g, v, p);
}

struct Single {
  static constexpr auto add = add_squares_f32;
  static constexpr auto squares = update_squares_f32;
  static constexpr auto move = move_f32;
};
struct Double {
  static constexpr auto add = add_squares_f64;
  static constexpr auto squares = update_squares_f64;
  static constexpr auto move = move_f64;
};

// Calls f(i) for each i of [0, count), on several threads where there is enough work.
template <class F>
void for_each(std::int64_t count, int threads, const F& f) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && count > 1)
  for (std::int64_t i = 0; i < count; ++i) f(i);
}

bool factored(const Piece& piece) {
  return piece.columns > 0;
}

// Returns the gradient of a parameter as blocks: those of the tensor ranks, or a single one. Here a vector is a matrix
// of one row.
std::vector<Block> blocks_of(const Piece& piece) {
  const std::int64_t rows = factored(piece) ? piece.rows : 1, columns = factored(piece) ? piece.columns : piece.rows;
  if (piece.blocks.empty()) return {{0, 0, piece.grad.view({rows, columns}), true, {}}};
  std::vector<Block> blocks = piece.blocks;
  for (Block& block : blocks)
    if (!factored(piece)) block = {0, block.row, block.values.view({1, -1}), block.own, block.beside};
  return blocks;
}

// The numbers of one step of one parameter.
struct Numbers {
  double weight = 1;  // 1 - b
  double eps1 = 0, alpha = 0, keep = 1, elements = 1;
  Numbers(const Update& u, const Piece& piece, double epsilon) {
    const Options& o = u.options;
    const auto step = static_cast<double>(u.step);
    weight = std::pow(step, o.beta2_decay);
    eps1 = o.eps1.value_or(epsilon);
    alpha = std::min(o.lr, 1.0 / std::sqrt(step));
    keep = piece.decay ? 1.0 - o.lr * o.weight_decay : 1.0;
    elements = static_cast<double>(piece.rows) * static_cast<double>(std::max<std::int64_t>(piece.columns, 1));
  }
};

template <class T, class Kernels>
class OnHost {
 public:
  OnHost(const Update& u, const Piece& piece)
      : u_(u),
        piece_(piece),
        blocks_(blocks_of(piece)),
        n_(u, piece, std::numeric_limits<T>::epsilon()),
        scale_(static_cast<T>(u.grad_scale.const_data_ptr<double>()[0])) {}

  void run() {
    const double alpha = n_.alpha * std::max(u_.options.eps2, std::sqrt(weight_squares() / n_.elements));
    move_columns();
    if (factored(piece_)) move_rows();
    const double size = std::sqrt(update_squares() / n_.elements);
    move_weights(alpha / std::max(1.0, size / u_.options.update_clip));
  }

 private:
  double weight_squares() const {
    if (piece_.blocks.empty()) return sum_squares(piece_.param.data_ptr<T>(), piece_.param.numel(), u_.threads);
    double sum = 0;
    for (const Block& block : blocks_) sum += static_cast<double>(block.beside.const_data_ptr<T>()[0]);
    return sum;
  }
  T* moments() const { return piece_.states[factored(piece_) ? 1 : 2].data_ptr<T>(); }  // of columns
  std::int64_t columns() const { return factored(piece_) ? piece_.columns : piece_.rows; }
  std::int64_t rows() const { return factored(piece_) ? piece_.rows : 1; }

  void move(T& moment, double mean) const { moment += static_cast<T>(n_.weight) * (static_cast<T>(mean) - moment); }

  void move_columns() const {
    T* moments = this->moments();
    for_each((columns() + kStrip - 1) / kStrip, u_.threads, [&](std::int64_t strip) {
      const std::int64_t first = strip * kStrip, last = std::min(columns(), first + kStrip);
      std::array<double, kStrip> sums{};
      for (const Block& block : blocks_) {
        const std::int64_t width = block.values.size(1), from = std::max(first, block.column),
                           to = std::min(last, block.column + width);
        if (from >= to) continue;
        const T* g = block.values.const_data_ptr<T>() + (from - block.column);
        for (std::int64_t r = 0; r < block.values.size(0); ++r)
          Kernels::add(scale_, to - from, g + r * width, sums.data() + (from - first));
      }
      for (std::int64_t k = first; k < last; ++k)
        move(moments[k], sums[static_cast<std::size_t>(k - first)] / static_cast<double>(rows()));
    });
  }

  // Calls f(block, row of the block) for each block that has part of a row.
  template <class F>
  void of_row(std::int64_t row, const F& f) const {
    for (const Block& block : blocks_)
      if (block.row <= row && row < block.row + block.values.size(0)) f(block, row - block.row);
  }

  void move_rows() {
    T* moments = piece_.states[0].data_ptr<T>();
    for_each(rows(), u_.threads, [&](std::int64_t row) {
      double sum = 0;
      of_row(row, [&](const Block& block, std::int64_t r) {
        const std::int64_t width = block.values.size(1);
        const T* g = block.values.const_data_ptr<T>() + r * width;
        for (std::int64_t at = 0; at < width; at += kStrip) {
          std::array<double, kStrip> squares{};
          const std::int64_t n = std::min(kStrip, width - at);
          Kernels::add(scale_, n, g + at, squares.data());
          for (std::int64_t k = 0; k < n; ++k) sum += squares[static_cast<std::size_t>(k)];
        }
      });
      move(moments[row], sum / static_cast<double>(columns()));
    });
    double sum = 0;
    for (std::int64_t row = 0; row < rows(); ++row) sum += static_cast<double>(moments[row]);
    inverse_mean_ = 1.0 / std::max(sum / static_cast<double>(rows()), n_.eps1);
  }

  Row<T> row_of(std::int64_t row) const {
    const T factor =
        factored(piece_) ? piece_.states[0].const_data_ptr<T>()[row] * static_cast<T>(inverse_mean_) : T(1);
    return {scale_, factor, static_cast<T>(n_.eps1 * n_.eps1)};
  }

  // Each thread sums groups of rows, and the sums are added in the order of the groups.
  double update_squares() const {
    const std::int64_t group = std::max<std::int64_t>(1, kBlock / columns()), groups = (rows() + group - 1) / group;
    std::vector<double> sums(static_cast<std::size_t>(groups));
    for_each(groups, u_.threads, [&](std::int64_t g) {
      for (std::int64_t row = g * group; row < std::min(rows(), (g + 1) * group); ++row)
        of_row(row, [&](const Block& block, std::int64_t r) {
          const std::int64_t width = block.values.size(1);
          sums[static_cast<std::size_t>(g)] += Kernels::squares(
              row_of(row), width, block.values.const_data_ptr<T>() + r * width, moments() + block.column);
        });
    });
    double sum = 0;
    for (const double of_group : sums) sum += of_group;
    return sum;
  }

  void move_weights(double step) const {
    for (const Block& block : blocks_) {
      if (!block.own) continue;
      const std::int64_t width = block.values.size(1);
      for_each(block.values.size(0), u_.threads, [&](std::int64_t r) {
        Kernels::move(row_of(block.row + r), static_cast<T>(n_.keep), static_cast<T>(step), width,
                      block.values.const_data_ptr<T>() + r * width, moments() + block.column,
                      piece_.param.data_ptr<T>() + r * width);
      });
    }
  }

  const Update& u_;
  const Piece& piece_;
  std::vector<Block> blocks_;
  Numbers n_;
  T scale_;
  double inverse_mean_ = 1;
};

void on_device(const Update& u, const Piece& piece) {
  const double epsilon = piece.grad.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                 : std::numeric_limits<float>::epsilon();
  const Numbers n(u, piece, epsilon);
  std::vector<Block> blocks = blocks_of(piece);
  at::Tensor grad = blocks.front().values, squares = piece.blocks.empty() ? piece.param.square().sum() : at::Tensor();
  const Block* own = nullptr;
  if (!piece.blocks.empty()) {
    grad = at::empty({factored(piece) ? piece.rows : 1, factored(piece) ? piece.columns : piece.rows}, grad.options());
    for (const Block& block : blocks) {
      grad.narrow(0, block.row, block.values.size(0)).narrow(1, block.column, block.values.size(1)).copy_(block.values);
      squares = squares.defined() ? squares + block.beside.select(0, 0) : block.beside.select(0, 0);
    }
  }
  for (const Block& block : blocks)
    if (block.own) own = &block;
  grad = grad.mul(u.grad_scale);
  const at::Tensor square = grad.square();
  at::Tensor moment;
  if (factored(piece)) {
    at::Tensor rows = piece.states[0], columns = piece.states[1];
    rows.lerp_(square.mean(1), n.weight);
    columns.lerp_(square.mean(0), n.weight);
    moment = rows.div(rows.mean().clamp_min(n.eps1)).unsqueeze(1).mul(columns.unsqueeze(0));
  } else {
    at::Tensor kept = piece.states[2];
    kept.lerp_(square.view({-1}), n.weight);
    moment = kept.clone().unsqueeze(0);
  }
  const at::Tensor update = moment.clamp_min_(n.eps1 * n.eps1).rsqrt_().mul_(grad);
  const at::Tensor size = update.square().mean().sqrt_().div_(u.options.update_clip).clamp_min_(1.0);
  const at::Tensor alpha = squares.div(n.elements).sqrt_().clamp_min_(u.options.eps2).mul_(n.alpha).div_(size);
  const at::Tensor moved =
      update.narrow(0, own->row, own->values.size(0)).narrow(1, own->column, own->values.size(1)).mul(alpha);
  at::Tensor param = piece.param.narrow(0, 0, own->values.numel());
  param.mul_(n.keep).sub_(moved.reshape({-1}));
}

// First stage: writes what other ranks need, the gradient of this rank's part and the sum of the squares of its
// weights.
void hand_on(const Update& u, const Piece& piece) {
  at::Tensor direction = piece.direction, beside = piece.beside;
  direction.copy_(piece.grad);
  if (!beside.device().is_cpu())
    beside.copy_(piece.param.square().sum());
  else if (beside.scalar_type() == at::kDouble)
    beside.data_ptr<double>()[0] = sum_squares(piece.param.data_ptr<double>(), piece.param.numel(), u.threads);
  else
    beside.data_ptr<float>()[0] =
        static_cast<float>(sum_squares(piece.param.data_ptr<float>(), piece.param.numel(), u.threads));
}

}  // namespace

void adafactor(const Update& u, const Piece& piece) {
  if (piece.direction.defined()) return hand_on(u, piece);
  if (!piece.grad.device().is_cpu()) return on_device(u, piece);
  if (piece.grad.scalar_type() == at::kDouble)
    OnHost<double, Double>(u, piece).run();
  else
    OnHost<float, Single>(u, piece).run();
}

}  // namespace molen::optim
