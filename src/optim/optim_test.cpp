#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "optim/adamw.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "optim/sum_squares.h"

namespace molen::optim {
namespace {

std::vector<double> normals(std::uint64_t key, std::int64_t n) {
  std::vector<double> x(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = normal_at(key, static_cast<std::uint64_t>(i));
  return x;
}

// Oracle: ATen's fused AdamW on the same numbers.
template <class T>
void against_aten(double tolerance) {
  c10::InferenceMode guard;
  constexpr std::int64_t n = 40009;
  const auto start = normals(1, n), gradient = normals(2, n);
  std::vector<T> p(start.begin(), start.end()), m(n, 0), v(n, 0);
  const auto type = sizeof(T) == 4 ? at::kFloat : at::kDouble;
  at::Tensor tp = at::from_blob(p.data(), {n}, type).clone(), tm = at::zeros({n}, type), tv = at::zeros({n}, type);
  Options o;
  o.lr = 0.01;
  for (int step = 1; step <= 5; ++step) {
    std::vector<T> g(gradient.begin(), gradient.end());
    for (auto& x : g) x *= static_cast<T>(step);
    at::Tensor tg = at::from_blob(g.data(), {n}, type).mul(0.25);
    at::Tensor count = at::full({}, step, at::kFloat);
    at::_fused_adamw_({tp}, {tg}, {tm}, {tv}, {}, {count}, o.lr, o.beta1, o.beta2, o.weight_decay, o.eps, false, false);
    adamw_update<T>(o, step, true, 0.25, n, 2, g.data(), p.data(), m.data(), v.data());
  }
  const double error = (at::from_blob(p.data(), {n}, type) - tp).abs().max().template item<double>();
  EXPECT_TRUE(error <= tolerance) << error;
}

// Five updates of a few roundings each on values up to about 5: 32 half-ulps of 5.
TEST(AdamW, EqualsAtenInDouble) {
  against_aten<double>(32 * 5 * 0x1p-53);
}
TEST(AdamW, EqualsAtenInFloat) {
  against_aten<float>(32 * 5 * 0x1p-24);
}

TEST(AdamW, SplitsGiveTheSameBits) {
  constexpr std::int64_t n = 5003, cut = 777;
  const auto start = normals(3, n), gradient = normals(4, n);
  std::vector<float> g(gradient.begin(), gradient.end());
  std::vector<float> a(start.begin(), start.end()), b = a, m1(n), v1(n), m2(n), v2(n);
  adamw_update<float>({}, 1, true, 1.0, n, 2, g.data(), a.data(), m1.data(), v1.data());
  adamw_update<float>({}, 1, true, 1.0, cut, 1, g.data(), b.data(), m2.data(), v2.data());
  adamw_update<float>({}, 1, true, 1.0, n - cut, 2, g.data() + cut, b.data() + cut, m2.data() + cut, v2.data() + cut);
  EXPECT_EQ(a, b);
  EXPECT_EQ(m1, m2);
  EXPECT_EQ(v1, v2);
}

// Norms and biases have no weight decay.
TEST(AdamW, DecaysWhereItIsAsked) {
  Options o;
  o.lr = 0.5, o.weight_decay = 0.25;
  for (const bool decay : {false, true}) {
    const std::vector<double> g(3, 0.0);
    std::vector<double> p{1.0, -2.0, 0.5}, m(3), v(3);
    adamw_update<double>(o, 1, decay, 1.0, 3, 1, g.data(), p.data(), m.data(), v.data());
    EXPECT_EQ(p, decay ? (std::vector<double>{0.875, -1.75, 0.4375}) : (std::vector<double>{1.0, -2.0, 0.5}));
  }
}

TEST(SumSquares, IsExactEnoughAndThreadIndependent) {
  constexpr std::int64_t n = 100003;
  const auto x = normals(5, n);
  std::vector<float> f(x.begin(), x.end());
  long double want = 0;
  for (const float value : f) want += static_cast<long double>(value) * value;
  const double one = sum_squares(f.data(), n, 1), two = sum_squares(f.data(), n, 2);
  EXPECT_EQ(one, two);
  EXPECT_TRUE(std::abs(one - static_cast<double>(want)) <= n * 0x1p-53 * static_cast<double>(want));
  f[77] = NAN;
  EXPECT_TRUE(std::isnan(sum_squares(f.data(), n, 2)));
}

TEST(SumSquares, OfADeviceAgreesWithTheHosts) {
  constexpr std::int64_t n = 100003;  // 97 blocks of 1024, and a rest
  const auto x = normals(5, n);
  for (const auto type : {at::kFloat, at::kDouble})
    for (const std::int64_t count : {n, std::int64_t{1024}, std::int64_t{1023}, std::int64_t{0}}) {
      at::Tensor t = at::empty({count}, at::kDouble);
      std::copy_n(x.begin(), count, t.data_ptr<double>());
      t = t.to(type);
      const at::Tensor got = sum_squares_by_aten(t);
      const double want = type == at::kFloat ? sum_squares(t.const_data_ptr<float>(), count, 1)
                                             : sum_squares(t.const_data_ptr<double>(), count, 1);
      // fp32: a rounding of the square, of each of 1023 sums, and of the root, which is squared again. fp64: both sides
      // round each sum.
      const double bound = type == at::kFloat ? 1026 * 0x1p-24 : 2 * static_cast<double>(count) * 0x1p-53;
      EXPECT_EQ(got.scalar_type(), at::kDouble);
      EXPECT_TRUE(std::abs(got.item<double>() - want) <= bound * want) << count << " of " << at::toString(type);
    }
  const at::Tensor nan = at::full({2000}, 1.0f, at::kFloat);
  nan.data_ptr<float>()[77] = NAN;
  EXPECT_TRUE(std::isnan(sum_squares_by_aten(nan).item<double>()));
}

TEST(LossScale, DoublesAfterTheWindowAndHalvesAtOnce) {
  LossScale s({8.0, 0, 0}, 3);
  for (const double expected : {8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0}) {
    s.good();
    EXPECT_EQ(s.scale(), expected);
  }
  s.overflow(8);
  EXPECT_EQ(s.state(), (LossScale::State{16.0, 0, 1}));  // the good step before it no longer counts
  s.good();
  s.good();
  EXPECT_EQ(s.scale(), 16.0);
  s.good();
  EXPECT_EQ(s.state(), (LossScale::State{32.0, 0, 1}));
}

TEST(LossScale, FallsToTheMinimumAndThenSaysSo) {
  LossScale s({0x1p+40, 0, 0}, 2000);
  for (int i = 0; i < 40; ++i) s.overflow(i);
  EXPECT_EQ(s.state(), (LossScale::State{1.0, 0, 40}));
  try {
    s.overflow(41);
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("step 41: the gradient overflows in fp16 at the smallest loss scale (1)"),
              std::string::npos)
        << error.what();
  }
  // One overflow at the smallest scale is tolerated; a second in a row is not.
  LossScale once({1.0, 0, 0}, 2000);
  once.overflow(1);
  once.good();
  once.overflow(3);
  EXPECT_EQ(once.state(), (LossScale::State{1.0, 0, 2}));
  EXPECT_THROW(once.overflow(4), Error);
  LossScale odd({1.5, 0, 0}, 2000);
  odd.overflow(1);
  EXPECT_EQ(odd.scale(), 1.0);
}

TEST(LossScale, StaysWithinItsBounds) {
  LossScale s({LossScale::kMaximum, 0, 0}, 1);
  s.good();
  EXPECT_EQ(s.scale(), LossScale::kMaximum);
  for (const double scale : {0.5, 0.0, -1.0, 2 * LossScale::kMaximum, static_cast<double>(NAN)})
    EXPECT_THROW(LossScale({scale, 0, 0}, 1), UsageError) << scale;
  EXPECT_THROW(LossScale({2.0, -1, 0}, 1), UsageError);
  EXPECT_THROW(LossScale({2.0, 0, -1}, 1), UsageError);
  EXPECT_THROW(LossScale({2.0, 0, 0}, 0), UsageError);
}

// A loss scale that is restored from its state continues as if it had not stopped.
TEST(LossScale, GoesOnFromItsState) {
  LossScale whole({64.0, 0, 0}, 2), part = whole;
  for (const bool overflow : {false, false, true, false, true, true, false, false, false}) {
    part = LossScale(part.state(), 2);
    for (LossScale* s : {&whole, &part}) overflow ? s->overflow(0) : s->good();
    EXPECT_EQ(part.state(), whole.state());
  }
  EXPECT_EQ(whole.state(), (LossScale::State{32.0, 1, 3}));
}

TEST(Schedule, Shapes) {
  Schedule s{ScheduleKind::kCosine, 1.0, 0.1, 10, 110, 0};
  EXPECT_DOUBLE_EQ(s.lr(1), 0.1);
  EXPECT_DOUBLE_EQ(s.lr(10), 1.0);
  EXPECT_NEAR(s.lr(60), 0.55, 1e-12);
  EXPECT_NEAR(s.lr(110), 0.1, 1e-12);
  EXPECT_NEAR(s.lr(500), 0.1, 1e-12);
  s.kind = ScheduleKind::kLinear;
  EXPECT_NEAR(s.lr(60), 0.55, 1e-12);
  s.kind = ScheduleKind::kWsd;
  s.decay_steps = 20;
  EXPECT_DOUBLE_EQ(s.lr(90), 1.0);
  EXPECT_NEAR(s.lr(100), 0.55, 1e-12);
  EXPECT_NEAR(s.lr(110), 0.1, 1e-12);
  s.kind = ScheduleKind::kConstant;
  EXPECT_DOUBLE_EQ(s.lr(110), 1.0);
}

// Compares away from the middle of the schedule, where cosine and line meet.
TEST(Schedule, CosineIsNoLine) {
  Schedule s{ScheduleKind::kCosine, 1.0, 0.1, 10, 110, 0};
  EXPECT_NEAR(s.lr(35), 0.55 + 0.45 * std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(s.lr(85), 0.55 - 0.45 * std::sqrt(0.5), 1e-12);
  s.kind = ScheduleKind::kLinear;
  EXPECT_NEAR(s.lr(35), 0.775, 1e-12);
  EXPECT_NEAR(s.lr(85), 0.325, 1e-12);
}

TEST(Schedule, DecayOfATenthAndBehindTheWarmUp) {
  Schedule s{ScheduleKind::kWsd, 1.0, 0.1, 10, 110, 0};
  EXPECT_DOUBLE_EQ(s.lr(99), 1.0);
  EXPECT_NEAR(s.lr(100), 1.0 - 0.9 / 11, 1e-12);
  EXPECT_NEAR(s.lr(110), 0.1, 1e-12);
  s.total_steps = 5, s.warmup_steps = 0;  // decay takes at least one step
  EXPECT_DOUBLE_EQ(s.lr(4), 1.0);
  EXPECT_NEAR(s.lr(5), 0.1, 1e-12);
  s = {ScheduleKind::kWsd, 1.0, 0.1, 105, 110, 20};
  EXPECT_DOUBLE_EQ(s.lr(105), 1.0);
  EXPECT_NEAR(s.lr(106), 1.0 - 0.9 / 5, 1e-12);
  EXPECT_THROW(s.lr(0), Error);
}

}  // namespace
}  // namespace molen::optim
