// Tests Muon's kernel in fp32 against fp64. tests/oracle/torch_parity.py compares fp64 with the published code.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "optim/test_values.h"
#include "optim/update.h"

namespace molen::optim {
namespace {

// Returns the weights after three steps in the given type.
at::Tensor trained(std::int64_t rows, std::int64_t columns, at::ScalarType type, const Options& options) {
  at::Tensor param = normal_values(1, rows * columns).to(type), momentum = at::zeros({rows * columns}, type);
  const std::int64_t small = std::min(rows, columns);
  // The matrix, a copy of it, and two products of the small side; math::Scratch rounds each to 64 bytes.
  std::vector<double> space(static_cast<std::size_t>(2 * rows * columns + 2 * small * small + 4 * 8 + 8));
  void* begin = space.data();
  std::size_t bytes = space.size() * sizeof(double);
  std::align(math::Scratch::kAlignment, 1, begin, bytes);
  math::Scratch scratch(begin, static_cast<std::int64_t>(bytes));
  for (int step = 1; step <= 3; ++step) {
    Piece piece;
    piece.decay = true;
    piece.grad = normal_values(static_cast<std::uint64_t>(step + 1), rows * columns).to(type);
    piece.param = param;
    piece.states = {momentum};
    piece.rows = rows, piece.columns = columns;
    rule_named("muon")({options, step, at::full({}, 0.25, at::kDouble), 2, &scratch}, piece);
  }
  return param.to(at::kDouble);
}

TEST(Muon, FloatIsAsCloseToDoubleAsItsIterationsAllow) {
  c10::InferenceMode guard;
  Options o;
  o.lr = 0.01;
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{24, 40}, {40, 24}}) {
    const at::Tensor wide = trained(rows, columns, at::kDouble, o), narrow = trained(rows, columns, at::kFloat, o),
                     start = normal_values(1, rows * columns);
    const double size = 0.2 * std::sqrt(40.0) * o.lr;  // size of an update, whose singular values are near 1
    EXPECT_GT((wide - start).abs().max().item<double>(), size / 40);
    // An iteration multiplies small singular values, and the rounding in them, by up to 3.4445. Sums have 24 or 40
    // terms, three in an iteration. The weights, up to about 4, are rounded twice a step.
    const double grown = 5 * 3 * 40 * std::pow(3.4445, 5) * 0x1p-24, bound = 3 * (size * grown + 2 * 4 * 0x1p-24);
    EXPECT_LE((wide - narrow).abs().max().item<double>(), bound) << rows << " x " << columns;
  }
}

}  // namespace
}  // namespace molen::optim
