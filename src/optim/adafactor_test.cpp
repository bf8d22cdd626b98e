// Tests of Adafactor's kernel: against the formula on whole tensors, in parts as tensor ranks hold them, and on other
// numbers of threads. torch.optim.Adafactor is the oracle of tests/oracle/torch_parity.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "optim/test_values.h"
#include "optim/update.h"

namespace molen::optim {

void adafactor(const Update& update, const Piece& piece);

namespace {

// A parameter and its states; `columns` is 0 for a vector.
struct Trained {
  std::int64_t rows, columns;
  at::Tensor param, v_rows, v_columns, v;
  Trained(std::int64_t rows_, std::int64_t columns_, at::ScalarType type) : rows(rows_), columns(columns_) {
    param = normal_values(1, rows * std::max<std::int64_t>(columns, 1), type, 0.3);
    if (columns > 0) {
      v_rows = at::zeros({rows}, type);
      v_columns = at::zeros({columns}, type);
    } else {
      v = at::zeros({rows}, type);
    }
  }
  Piece piece(const at::Tensor& grad) const {
    Piece p;
    p.decay = true;
    p.grad = grad;
    p.param = param;
    p.states = {v_rows, v_columns, v};
    p.rows = rows;
    p.columns = columns;
    return p;
  }
};

Update update_of(const Options& options, int step, int threads) {
  return {options, step, at::full({}, 0.25, at::kDouble), threads, nullptr};
}

// Computes the paper's formula on whole tensors, in the form of torch.optim.Adafactor.
void by_formula(const Options& o, int step, const at::Tensor& scaled, double epsilon, Trained& t) {
  const double weight = std::pow(step, o.beta2_decay), eps1 = o.eps1.value_or(epsilon);
  const double size = t.param.square().mean().sqrt().item<double>();
  const double alpha = std::max(o.eps2, size) * std::min(o.lr, 1 / std::sqrt(step));
  at::Tensor grad = scaled, moment;
  if (t.columns > 0) {
    grad = scaled.view({t.rows, t.columns});
    t.v_rows = t.v_rows * (1 - weight) + weight * grad.square().mean(1);
    t.v_columns = t.v_columns * (1 - weight) + weight * grad.square().mean(0);
    moment = at::outer(t.v_rows, t.v_columns) / t.v_rows.mean().clamp_min(eps1);
  } else {
    moment = t.v = t.v * (1 - weight) + weight * grad.square();
  }
  const at::Tensor u = grad / moment.sqrt().clamp_min(eps1);
  const double clip = std::max(1.0, u.square().mean().sqrt().item<double>() / o.update_clip);
  t.param = t.param * (1 - o.lr * o.weight_decay) - u.reshape({-1}) * (alpha / clip);
}

// Compares the kernel with the formula. `size` is the size of the gradients; the small ones are below eps1 in fp32.
void against_formula(std::int64_t rows, std::int64_t columns, at::ScalarType type, double size, Options o) {
  c10::InferenceMode guard;
  const double epsilon =
      type == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  Trained ours(rows, columns, type), theirs(rows, columns, type);
  for (int step = 1; step <= 5; ++step) {
    const at::Tensor grad = normal_values(static_cast<std::uint64_t>(step + 1), ours.param.numel(), type, size);
    adafactor(update_of(o, step, 2), ours.piece(grad));
    by_formula(o, step, grad * 0.25, epsilon, theirs);
  }
  EXPECT_FALSE(at::equal(theirs.param, normal_values(1, theirs.param.numel(), type, 0.3)));
  // Five updates of at most eight roundings each, of values that are no larger than the largest weight or its steps.
  const double error = (ours.param - theirs.param).abs().max().item<double>();
  const double largest = theirs.param.abs().max().item<double>() + 5 * o.lr;
  EXPECT_LE(error, 5 * 8 * largest * epsilon / 2) << rows << " x " << columns;
}

TEST(Adafactor, EqualsTheFormula) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const auto& [rows, columns] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{37, 301}, {301, 37}, {517, 0}, {1, 64}, {64, 1}, {1, 0}})
      for (const double size : {1.0, 1e-9}) {
        Options o;
        o.lr = 0.01;
        against_formula(rows, columns, type, size, o);
        o.eps1 = 1e-3;  // more than the small gradients
        o.eps2 = 0.5;   // more than the parameter
        o.beta2_decay = -0.3;
        o.update_clip = 2.0;
        o.lr = 0.9;  // above 1/sqrt(step) from the second step on
        o.weight_decay = 0.01;
        against_formula(rows, columns, type, size, o);
      }
}

// With a zero gradient the moments are zero too, and only weight decay changes the weights.
TEST(Adafactor, AZeroGradientOnlyDecays) {
  c10::InferenceMode guard;
  Options o;
  o.weight_decay = 0;
  for (const std::int64_t columns : {0, 7}) {
    Trained t(5, columns, at::kFloat);
    const at::Tensor before = t.param.clone();
    adafactor(update_of(o, 1, 1), t.piece(at::zeros_like(before)));
    EXPECT_TRUE(at::equal(t.param, before));
  }
}

TEST(Adafactor, ThreadsGiveTheSameBits) {
  c10::InferenceMode guard;
  Trained one(301, 777, at::kFloat), many = one;
  for (at::Tensor* t : {&many.param, &many.v_rows, &many.v_columns}) *t = t->clone();
  for (int step = 1; step <= 3; ++step) {
    const at::Tensor grad = normal_values(static_cast<std::uint64_t>(step), one.param.numel(), at::kFloat, 1.0);
    adafactor(update_of({}, step, 1), one.piece(grad));
    adafactor(update_of({}, step, 3), many.piece(grad));
  }
  EXPECT_TRUE(at::equal(one.param, many.param));
  EXPECT_TRUE(at::equal(one.v_rows, many.v_rows));
  EXPECT_TRUE(at::equal(one.v_columns, many.v_columns));
}

// Returns rows or columns [first, last) of a flat matrix.
at::Tensor part(const Trained& of, const at::Tensor& flat, bool by_rows, std::int64_t first, std::int64_t last) {
  const at::Tensor matrix = flat.view({of.rows, std::max<std::int64_t>(of.columns, 1)});
  return matrix.narrow(by_rows ? 0 : 1, first, last - first).contiguous();
}

// Two ranks with uneven parts: each takes both stages, and they end with the weights and the states of one rank.
void in_parts(std::int64_t rows, std::int64_t columns, bool by_rows) {
  const std::int64_t size = by_rows ? rows : columns, cuts[] = {0, size / 3, size};
  Trained whole(rows, columns, at::kDouble);
  std::vector<Trained> ranks(2, whole);
  for (std::size_t r = 0; r < 2; ++r) {
    ranks[r].param = part(whole, whole.param, by_rows, cuts[r], cuts[r + 1]).view({-1});
    for (at::Tensor* t : {&ranks[r].v_rows, &ranks[r].v_columns, &ranks[r].v})
      if (t->defined()) *t = t->clone();
  }
  for (int step = 1; step <= 4; ++step) {
    const at::Tensor grad = normal_values(static_cast<std::uint64_t>(step + 7), whole.param.numel(), at::kDouble, 1.0);
    adafactor(update_of({}, step, 1), whole.piece(grad));
    std::vector<Piece> pieces;
    std::vector<Block> blocks;
    for (std::size_t r = 0; r < 2; ++r) {
      const at::Tensor own = part(whole, grad, by_rows, cuts[r], cuts[r + 1]);
      Piece& piece = pieces.emplace_back(ranks[r].piece(own.view({-1})));
      piece.direction = at::empty_like(piece.grad);
      piece.beside = at::empty({1}, at::kDouble);
      adafactor(update_of({}, step, 1), piece);
      blocks.push_back(
          {by_rows ? cuts[r] : 0, by_rows ? 0 : cuts[r], piece.direction.view(own.sizes()), false, piece.beside});
      piece.direction = piece.beside = at::Tensor();
    }
    for (std::size_t r = 0; r < 2; ++r) {
      pieces[r].blocks = blocks;
      pieces[r].blocks[r].own = true;
      adafactor(update_of({}, step, 1), pieces[r]);
    }
  }
  // Sums over a row of two parts have another order: a few roundings in each of four steps.
  const double bound = 16 * std::numeric_limits<double>::epsilon();
  for (std::size_t r = 0; r < 2; ++r) {
    const at::Tensor wanted = part(whole, whole.param, by_rows, cuts[r], cuts[r + 1]).view({-1});
    EXPECT_LE((ranks[r].param - wanted).abs().max().item<double>(), bound) << rows << " x " << columns;
    if (columns == 0) {
      EXPECT_LE((ranks[r].v - whole.v).abs().max().item<double>(), bound);
      continue;
    }
    EXPECT_LE((ranks[r].v_rows - whole.v_rows).abs().max().item<double>(), bound);
    EXPECT_LE((ranks[r].v_columns - whole.v_columns).abs().max().item<double>(), bound);
    EXPECT_TRUE(at::equal(ranks[r].v_rows, ranks[0].v_rows));
    EXPECT_TRUE(at::equal(ranks[r].v_columns, ranks[0].v_columns));
  }
}

TEST(Adafactor, TensorRanksEndWithTheWeightsOfOne) {
  c10::InferenceMode guard;
  in_parts(40, 301, true);
  in_parts(40, 301, false);
  in_parts(77, 0, true);
}

}  // namespace
}  // namespace molen::optim
