// Tests of Lion's kernel: against the formula of its paper, and on other numbers of threads and other splits.
// tests/oracle/torch_parity.py compares whole runs with the published implementation.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "optim/test_values.h"
#include "optim/update.h"

namespace molen::optim {

void lion(const Update& update, const Piece& piece);

namespace {

constexpr double kLionGradScale = 0.25;

Options lion_options() {
  Options o;
  o.lr = 0.01, o.beta1 = 0.9, o.beta2 = 0.99, o.weight_decay = 0.1;
  return o;
}

void lion_step(const at::Tensor& grad, const at::Tensor& param, const at::Tensor& m, bool decay, int threads) {
  Piece piece;
  piece.decay = decay;
  piece.grad = grad, piece.param = param, piece.states = {m};
  lion({lion_options(), 1, at::full({}, kLionGradScale, at::kDouble), threads, nullptr}, piece);
}

// Algorithm 2 of the paper on one weight.
void lion_by_formula(double grad, bool decay, double& param, double& m) {
  const Options o = lion_options();
  const double g = grad * kLionGradScale, direction = o.beta1 * m + (1 - o.beta1) * g;
  const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
  param -= o.lr * (sign + (decay ? o.weight_decay * param : 0));
  m = o.beta2 * m + (1 - o.beta2) * g;
}

TEST(Lion, IsTheFormula) {
  const c10::InferenceMode guard;
  constexpr int kSteps = 5;
  constexpr std::int64_t kCount = 1000;
  for (const bool decay : {true, false}) {
    const at::Tensor param = normal_values(1, kCount, at::kDouble), m = at::zeros({kCount}, at::kDouble);
    std::vector<double> p(kCount), momentum(kCount, 0.0);
    std::copy_n(param.const_data_ptr<double>(), kCount, p.begin());
    for (int s = 0; s < kSteps; ++s) {
      const at::Tensor grad = normal_values(static_cast<std::uint64_t>(10 + s), kCount, at::kDouble);
      lion_step(grad, param, m, decay, 1);
      for (std::size_t i = 0; i < p.size(); ++i)
        lion_by_formula(grad.const_data_ptr<double>()[i], decay, p[i], momentum[i]);
    }
    // A step rounds a weight at most three times, and a weight is below 8.
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_NEAR(param.const_data_ptr<double>()[i], p[i], kSteps * 3 * 8 * 0x1p-53);
      EXPECT_NEAR(m.const_data_ptr<double>()[i], momentum[i], kSteps * 3 * 8 * 0x1p-53);
    }
  }
}

// A direction of zero moves a weight by its decay alone.
TEST(Lion, ZeroHasNoSign) {
  const c10::InferenceMode guard;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor param = at::ones({3}, type), grad = at::zeros({3}, type), m = at::zeros({3}, type);
    grad[1] = -1e-30, grad[2] = 1e-30;
    lion_step(grad, param, m, true, 1);
    const double kept = 1 - 0.01 * 0.1, rounding = type == at::kFloat ? 0x1p-22 : 0x1p-51;
    EXPECT_NEAR(param[0].item<double>(), kept, rounding);
    EXPECT_NEAR(param[1].item<double>(), kept + 0.01, rounding);
    EXPECT_NEAR(param[2].item<double>(), kept - 0.01, rounding);
  }
}

// A rank may hold any part of a unit, and any number of threads may share it.
TEST(Lion, SplitsGiveTheSameBits) {
  const c10::InferenceMode guard;
  constexpr std::int64_t kCount = (1 << 18) + 37;  // more than one block of each thread
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor grad = normal_values(3, kCount, type);
    const auto trained = [&](int threads, std::int64_t cut) {
      const at::Tensor param = normal_values(1, kCount, type), m = normal_values(2, kCount, type);
      const auto part = [&](std::int64_t first, std::int64_t end) {
        const auto of = [&](const at::Tensor& t) { return t.narrow(0, first, end - first); };
        lion_step(of(grad), of(param), of(m), true, threads);
      };
      part(0, cut);
      if (cut < kCount) part(cut, kCount);
      return at::cat({param, m});
    };
    const at::Tensor whole = trained(1, kCount);
    EXPECT_TRUE(at::equal(trained(3, kCount), whole));
    EXPECT_TRUE(at::equal(trained(2, 4097), whole));
  }
}

}  // namespace
}  // namespace molen::optim
