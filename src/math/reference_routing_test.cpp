// Tests routing: by hand, against sorting, against PyTorch's autograd on the formulas of transformers, the backward
// against the complex step, and fp32 against fp64.
#include "math/reference_routing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "math/test_close.h"
#include "math/test_experts.h"

namespace molen::math::reference {
namespace {

using namespace testing;
using i64 = std::int64_t;
constexpr RouterScore kSoftmax = RouterScore::kSoftmax, kSigmoid = RouterScore::kSigmoid;

template <class T>
struct Routed {
  Values<std::int32_t> choice;
  Values<T> weight, scores, lse;
};
template <class T>
Routed<T> route_all(const Router& r, const Values<T>& logits, const Values<T>& bias, int threads = 2) {
  const auto NE = static_cast<std::size_t>(r.N * r.E), Nk = static_cast<std::size_t>(r.N * r.k);
  Routed<T> out{Values<std::int32_t>(Nk, -1), Values<T>(Nk), Values<T>(NE), Values<T>(static_cast<std::size_t>(r.N))};
  route(threads, r, logits.data(), bias.empty() ? nullptr : bias.data(), out.choice.data(), out.weight.data(),
        out.scores.data(), out.lse.data());
  return out;
}
template <class T>
Values<T> sums_of(const Router& r, i64 B, bool biased, const Values<T>& logits, const Routed<T>& routed,
                  int threads = 2) {
  Values<T> sums(static_cast<std::size_t>(B * 2 * r.E), T(-1));
  const i64 bytes =
      Scratch::aligned(threads * r.E * static_cast<i64>(sizeof(Accum<T>))) + Scratch::aligned(threads * r.k * 4);
  GuardedScratch scratch(bytes);
  balance_sums(threads, r, B, biased, logits.data(), biased ? nullptr : routed.choice.data(), routed.scores.data(),
               sums.data(), scratch.scratch);
  EXPECT_TRUE(scratch.intact());
  return sums;
}

// J = sum weight d_weight + balance sum_b L_b + z sum_n lse_n^2
template <class T>
T objective(const Router& r, const RouterLosses& l, const Values<T>& logits, const Values<T>& bias,
            const Values<double>& d_weight) {
  const Routed<T> routed = route_all(r, logits, bias, 1);
  T sum(0);
  for (std::size_t i = 0; i < d_weight.size(); ++i) sum += d_weight[i] * routed.weight[i];
  const Values<T> sums = sums_of(r, l.B, !bias.empty(), logits, routed, 1);
  Values<T> losses(static_cast<std::size_t>(l.B));
  balance_losses(r, l, sums.data(), losses.data());
  for (const T& x : losses) sum += l.balance * x;
  return sum + l.z * z_loss_sum(r, routed.lse.data());
}
template <class T>
Values<T> gradient(const Router& r, const RouterLosses& l, const Values<T>& logits, const Values<T>& bias,
                   const Values<T>& d_weight, int threads = 2) {
  const Routed<T> routed = route_all(r, logits, bias);
  const Values<T> sums = sums_of(r, l.B, !bias.empty(), logits, routed);
  Values<T> d_logits(logits.size(), T(NAN));
  route_backward(threads, r, l, logits.data(), routed.scores.data(), routed.lse.data(), routed.choice.data(),
                 d_weight.data(), l.balance != 0 ? sums.data() : nullptr, d_logits.data());
  return d_logits;
}

// Two sequences have 5 tokens each, of which 3 and 4 count.
constexpr std::int32_t kSomeCount[] = {7, -1, 0, 3, -1, 2, 9, 4, -1, 1};

// The cases have both kinds of scores, with and without tokens that do not count, renormalised weights, a bias and each
// loss.
struct Case {
  Router r;
  RouterLosses l;
  bool biased;
};
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const RouterScore score : {kSoftmax, kSigmoid})
    for (const auto& [E, k] : {std::pair<i64, i64>{7, 3}, {7, 1}, {5, 5}, {1, 1}})
      for (const bool renormalise : {false, true})
        for (const int losses : {0, 1, 2, 3}) {
          const bool constant = (renormalise && k == 1) || (E == 1 && score == kSoftmax);  // weights without gradient
          if (constant && (losses & 2) == 0 && (E == 1 || losses == 0)) continue;
          const RouterLosses l{(losses & 1) ? 0.7 : 0.0, (losses & 2) ? 0.3 : 0.0, 2, 5};
          list.push_back({{10, E, k, score, renormalise, 2.5}, l, score == kSigmoid && losses % 2 == 1});
          if (losses == 0) continue;
          list.push_back(list.back());
          list.back().r.labels_N = kSomeCount;
        }
  return list;
}

TEST(Routing, BackwardIsTheComplexStep) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << "E " << c.r.E << " k " << c.r.k << " sigmoid " << (c.r.score == kSigmoid)
                                      << " renormalise " << c.r.renormalise << " balance " << c.l.balance << " z "
                                      << c.l.z << " biased " << c.biased);
    const Values<double> logits = random_values(c.r.N * c.r.E, 1), d_weight = random_values(c.r.N * c.r.k, 2),
                         bias = c.biased ? random_values(c.r.E, 3, 0.2) : Values<double>{};
    expect_gradient(gradient(c.r, c.l, logits, bias, d_weight),
                    complex_step(logits,
                                 [&](const Values<Complex>& z) {
                                   return objective<Complex>(c.r, c.l, z, as<Complex>(bias), d_weight);
                                 }),
                    "d_logits");
  }
}

// A dropped choice is in no sum, but its score is still a term of the divisor of the weights. The losses are those of
// all choices.
TEST(Routing, BackwardOfWhatACapacityLeavesIsTheComplexStep) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << "E " << c.r.E << " k " << c.r.k << " sigmoid " << (c.r.score == kSigmoid)
                                      << " renormalise " << c.r.renormalise << " balance " << c.l.balance);
    const Values<double> logits = random_values(c.r.N * c.r.E, 1),
                         bias = c.biased ? random_values(c.r.E, 3, 0.2) : Values<double>{};
    Values<double> d_weight = random_values(c.r.N * c.r.k, 2);
    Routed<double> routed = route_all(c.r, logits, bias);
    const Values<double> sums = sums_of(c.r, c.l.B, c.biased, logits, routed);
    Values<std::int32_t> taken(static_cast<std::size_t>(c.r.E));
    limit_experts(c.r.N, c.r.k, c.r.E, c.l.B, 1, c.r.labels_N, routed.choice.data(), taken.data());
    std::size_t lost = 0;
    for (std::size_t slot = 0; slot < d_weight.size(); ++slot)
      if (is_dropped(routed.choice[slot])) d_weight[slot] = 0.0, ++lost;
    EXPECT_TRUE(lost > 0 && lost < d_weight.size());
    Values<double> got(logits.size(), NAN);
    route_backward(2, c.r, c.l, logits.data(), routed.scores.data(), routed.lse.data(), routed.choice.data(),
                   d_weight.data(), sums.data(), got.data());
    expect_gradient(got,
                    complex_step(logits,
                                 [&](const Values<Complex>& z) {
                                   return objective<Complex>(c.r, c.l, z, as<Complex>(bias), d_weight);
                                 }),
                    "d_logits");
  }
}

// When ranks have some tokens of each sequence, the sums over ranks equal those of whole sequences, and so do losses
// and gradients.
TEST(Routing, RanksMaySharePartsOfSequences) {
  const i64 B = 2, T = 9, E = 6, k = 2, first = 4;  // tokens of a sequence on the first rank
  for (const RouterScore score : {kSoftmax, kSigmoid}) {
    const Router whole{B * T, E, k, score, true, 1.0};
    const RouterLosses l{0.9, 0.2, B, T};
    const Values<double> logits = random_values(whole.N * E, 4), d_weight = random_values(whole.N * k, 5);
    const Values<double> want = gradient(whole, l, logits, {}, d_weight);
    const auto part = [&](const Values<double>& all, int rank, i64 width) {
      Values<double> own;
      for (i64 b = 0; b < B; ++b)
        own.insert(own.end(), all.begin() + (b * T + (rank ? first : 0)) * width,
                   all.begin() + (b * T + (rank ? T : first)) * width);
      return own;
    };
    Values<double> sums(static_cast<std::size_t>(B * 2 * E));
    Router ranks[2] = {whole, whole};
    Routed<double> routed[2];
    for (const int rank : {0, 1}) {
      ranks[rank].N = B * (rank ? T - first : first);
      const Values<double> own = part(logits, rank, E);
      routed[rank] = route_all(ranks[rank], own, {});
      const Values<double> some = sums_of(ranks[rank], B, false, own, routed[rank]);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += some[i];
    }
    Values<double> losses(B), whole_losses(B);
    balance_losses(whole, l, sums.data(), losses.data());
    balance_losses(whole, l, sums_of(whole, B, false, logits, route_all(whole, logits, {})).data(),
                   whole_losses.data());
    EXPECT_TRUE(close(losses, whole_losses, {0x1p-53, T, 4}));
    for (const int rank : {0, 1}) {
      const Values<double> own = part(logits, rank, E), g = part(d_weight, rank, k);
      Values<double> d(own.size());
      route_backward(2, ranks[rank], l, own.data(), routed[rank].scores.data(), routed[rank].lse.data(),
                     routed[rank].choice.data(), g.data(), sums.data(), d.data());
      expect_gradient(d, part(want, rank, E), "d_logits of a rank");
    }
  }
}

TEST(Routing, ByHand) {
  const Values<double> logits{std::log(1.0), std::log(5.0), std::log(2.0)};
  const Routed<double> plain = route_all<double>({1, 3, 2}, logits, {});
  EXPECT_EQ(plain.choice, (Values<std::int32_t>{1, 2}));
  EXPECT_NEAR(plain.weight[0], 5.0 / 8, 1e-15);
  EXPECT_NEAR(plain.weight[1], 2.0 / 8, 1e-15);
  EXPECT_NEAR(plain.lse[0], std::log(8.0), 1e-15);
  const Routed<double> divided = route_all<double>({1, 3, 2, kSoftmax, true, 3.0}, logits, {});
  EXPECT_NEAR(divided.weight[0], 15.0 / 7, 1e-15);
  EXPECT_NEAR(divided.weight[1], 6.0 / 7, 1e-15);
  // sigmoid(log x) = x / (1 + x): 1/2, 5/6, 2/3. The bias decides the choice and its order, not the weights.
  const Router sigmoid{1, 3, 2, kSigmoid, true, 1.0};
  const Routed<double> biased = route_all<double>(sigmoid, logits, {0.4, -0.5, 0.0});
  EXPECT_EQ(biased.choice, (Values<std::int32_t>{0, 2}));
  EXPECT_NEAR(biased.weight[0], (1.0 / 2) / (7.0 / 6), 1e-15);
  EXPECT_NEAR(biased.weight[1], (2.0 / 3) / (7.0 / 6), 1e-15);
  // The balance counts the experts that the scores alone would choose.
  const Values<double> sums = sums_of(sigmoid, 1, true, logits, biased);
  EXPECT_EQ(Values<double>(sums.begin(), sums.begin() + 3), (Values<double>{0, 1, 1}));
  EXPECT_NEAR(sums[3], 1.0 / 4, 1e-15);
}

TEST(Routing, EvenLoadCostsTheCoefficientAndTheWorstEOverKTimesIt) {
  for (const RouterScore score : {kSoftmax, kSigmoid}) {
    const i64 E = 6, k = 2, T = 12;
    const Router r{T, E, k, score};
    Values<double> even(static_cast<std::size_t>(T * E), -3.0), worst = even;
    for (i64 n = 0; n < T; ++n)
      for (i64 j = 0; j < k; ++j)
        even[static_cast<std::size_t>(n * E + (n * k + j) % E)] = 3.0,
                                                            worst[static_cast<std::size_t>(n * E + j)] = 80.0;
    for (double& x : worst)
      if (x < 0) x = -80.0;
    double loss = 0;
    balance_losses(r, {1, 0, 1, T}, sums_of(r, 1, false, even, route_all(r, even, {})).data(), &loss);
    EXPECT_NEAR(loss, 1.0, 1e-14);
    balance_losses(r, {1, 0, 1, T}, sums_of(r, 1, false, worst, route_all(r, worst, {})).data(), &loss);
    EXPECT_NEAR(loss, static_cast<double>(E) / static_cast<double>(k), 1e-14);
  }
}

RC_GTEST_PROP(Routing, ChoiceIsAStableSort, ()) {
  const i64 E = *rc::gen::inRange<i64>(1, 40), k = *rc::gen::inRange<i64>(1, E + 1);
  const Router r{3, E, k, *rc::gen::element(kSoftmax, kSigmoid)};
  const auto few = [](i64 count) {  // many of the values are equal
    return as<double>(*rc::gen::container<std::vector<int>>(static_cast<std::size_t>(count), rc::gen::inRange(-2, 3)));
  };
  const Values<double> logits = few(3 * E), bias = *rc::gen::arbitrary<bool>() ? few(E) : Values<double>{};
  const Routed<double> routed = route_all(r, logits, bias);
  for (i64 n = 0; n < 3; ++n) {
    const auto key = [&](std::int32_t e) {
      const auto at = static_cast<std::size_t>(n * E + e);
      return bias.empty() ? logits[at] : routed.scores[at] + bias[static_cast<std::size_t>(e)];
    };
    Values<std::int32_t> order(static_cast<std::size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) > key(b); });
    RC_ASSERT(std::equal(order.begin(), order.begin() + k, routed.choice.begin() + n * k));
  }
}

TEST(Routing, NaNReachesTheWeightsOfItsTokenAlone) {
  const double nan = NAN, inf = INFINITY;
  for (const RouterScore score : {kSoftmax, kSigmoid})
    for (const bool biased : {false, true})
      for (const Values<double>& bad : {Values<double>{0, 1, nan, 2, 3},
                                        {nan, nan, nan, nan, nan},
                                        {5, 4, 3, nan, nan},
                                        {nan, inf, -inf, inf, 0}}) {
        const Router r{3, 5, 2, score, true, 1.0};
        const Values<double> clean = random_values(15, 6), bias = biased ? random_values(5, 7) : Values<double>{},
                             d_weight = random_values(6, 8);
        Values<double> logits = clean;
        std::copy(bad.begin(), bad.end(), logits.begin() + 5);
        const Routed<double> want = route_all(r, clean, bias), got = route_all(r, logits, bias);
        const std::set<std::int32_t> chosen{got.choice[2], got.choice[3]};
        EXPECT_TRUE(chosen.size() == 2 && *chosen.begin() >= 0 && *chosen.rbegin() < 5);
        EXPECT_TRUE(std::isnan(got.weight[2]) && std::isnan(got.weight[3]));
        const RouterLosses l{0, 0.5, 1, 3};
        const Values<double> d = gradient(r, l, logits, bias, d_weight),
                             clean_d = gradient(r, l, clean, bias, d_weight);
        EXPECT_TRUE(std::any_of(d.begin() + 5, d.begin() + 10, [](double x) { return std::isnan(x); }));
        for (const std::size_t n : {0U, 2U}) {
          for (std::size_t j = 2 * n; j < 2 * n + 2; ++j)
            EXPECT_TRUE(got.choice[j] == want.choice[j] && got.weight[j] == want.weight[j]);
          for (std::size_t e = 5 * n; e < 5 * n + 5; ++e) EXPECT_EQ(d[e], clean_d[e]);
        }
      }
}

TEST(Routing, RefusesSizesOfNoRouter) {
  EXPECT_THROW(route_all<double>({1, 2, 3}, {0, 1}, {}), Error);
  EXPECT_THROW(route_all<double>({1, 2, 0}, {0, 1}, {}), Error);
  const Router r{3, 2, 1};
  const Values<double> logits(6), d_weight(3);
  EXPECT_THROW(sums_of(r, 2, false, logits, route_all(r, logits, {})), Error);
  EXPECT_THROW(gradient(r, {1, 0, 1, 0}, logits, {}, d_weight), Error);
  Values<double> d(6);
  EXPECT_THROW(route_backward(1, r, {0, 1, 2, 3}, logits.data(), logits.data(), logits.data(), nullptr, d_weight.data(),
                              logits.data(), d.data()),
               Error);
}

// The losses of the tokens that count equal those of a batch of these tokens alone, with each sequence weighed by its
// share of them.
TEST(Routing, TokensThatDoNotCountAreInNoLoss) {
  Router all{10, 7, 3};
  all.labels_N = kSomeCount;
  const Values<double> logits = random_values(70, 4);
  const Routed<double> routed = route_all(all, logits, {});
  const Values<double> sums = sums_of(all, 2, false, logits, routed);
  Values<double> losses(2);
  balance_losses(all, {.B = 2, .T = 5}, sums.data(), losses.data());
  double z = 0.0;
  for (const i64 b : {0, 1}) {
    Values<double> kept;
    i64 tokens = 0;
    for (i64 n = 5 * b; n < 5 * b + 5; ++n)
      if (kSomeCount[n] >= 0) kept.insert(kept.end(), logits.begin() + 7 * n, logits.begin() + 7 * n + 7), ++tokens;
    const Router few{tokens, 7, 3};
    const Routed<double> alone = route_all(few, kept, {});
    double loss = 0.0;
    balance_losses(few, {.B = 1, .T = tokens}, sums_of(few, 1, false, kept, alone).data(), &loss);
    EXPECT_NEAR(losses[static_cast<std::size_t>(b)], loss * static_cast<double>(tokens) / 5.0, 1e-15);
    z += z_loss_sum(few, alone.lse.data());
  }
  EXPECT_NEAR(z_loss_sum(all, routed.lse.data()), z, 1e-13);
  const std::int32_t none[10] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  all.labels_N = none;
  balance_losses(all, {.B = 2, .T = 5}, sums_of(all, 2, false, logits, routed).data(), losses.data());
  EXPECT_EQ(losses, Values<double>(2, 0.0));
}

TEST(Routing, InfiniteLogits) {
  const double inf = INFINITY;
  const Routed<double> softmax = route_all<double>({1, 3, 2}, {-inf, 1, 1}, {});
  EXPECT_EQ(softmax.choice, (Values<std::int32_t>{1, 2}));
  EXPECT_EQ(softmax.weight, (Values<double>{0.5, 0.5}));
  const Routed<double> sigmoid = route_all<double>({1, 3, 3, kSigmoid, true, 1.0}, {-inf, inf, 0}, {});
  EXPECT_EQ(sigmoid.choice, (Values<std::int32_t>{1, 2, 0}));
  EXPECT_EQ(sigmoid.weight, (Values<double>{1 / 1.5, 0.5 / 1.5, 0}));
  // Scores that are all zero give zero weights and no gradient.
  const Router r{1, 2, 1, kSigmoid, true, 1.0};
  EXPECT_EQ(route_all<double>(r, {-1000, -1000}, {}).weight[0], 0.0);
  EXPECT_EQ(gradient<double>(r, {1, 0, 1, 1}, {-1000, -1000}, {}, {1}), (Values<double>{0, 0}));
}

// Each score is rounded once from double and everything else is computed from it in double, so a weight has the
// roundings of two scores and one of its own. In the gradient, terms of the size of d_weight and of the counts cancel.
TEST(Routing, FloatIsDoubleWithinItsRoundings) {
  for (const Case& c : cases()) {
    const Values<double> logits = random_values(c.r.N * c.r.E, 9), d_weight = random_values(c.r.N * c.r.k, 10),
                         bias = c.biased ? random_values(c.r.E, 11, 0.2) : Values<double>{};
    const Values<float> logits32 = as<float>(logits), bias32 = as<float>(bias), g32 = as<float>(d_weight);
    const Routed<double> want = route_all(c.r, logits, bias);
    const Routed<float> got = route_all(c.r, logits32, bias32);
    EXPECT_EQ(got.choice, want.choice);
    if (constant(want.weight))  // errors are relative to the whole scale
      EXPECT_EQ(as<double>(got.weight), want.weight);
    else
      EXPECT_TRUE(close(as<double>(got.weight), want.weight, {0x1p-24, 1, 3}));
    EXPECT_TRUE(close(as<double>(got.lse), want.lse, {0x1p-24, 1, 2}));
    const Values<double> sums = sums_of(c.r, 2, c.biased, logits, want);
    if (!constant(sums)) {
      EXPECT_TRUE(close(as<double>(sums_of(c.r, 2, c.biased, logits32, got)), sums, {0x1p-24, 1, 4}));
    }
    double most = 0;
    for (const double g : d_weight) most = std::max(most, std::abs(g));
    const double terms = 2 * c.r.scale * most * (c.r.renormalise && c.r.score == kSoftmax ? 2.0 : 1.0) + 1;
    EXPECT_TRUE(close(as<double>(gradient(c.r, c.l, logits32, bias32, g32)), gradient(c.r, c.l, logits, bias, d_weight),
                      {0x1p-24, 1, 8, terms}));
  }
}

TEST(Routing, SameBitsForAnyNumberOfThreads) {
  const Router r{31, 9, 4, kSigmoid, true, 2.0};
  const RouterLosses l{0.5, 0.25, 31, 1};
  const Values<float> logits = as<float>(random_values(31 * 9, 12)), bias = as<float>(random_values(9, 13, 0.1)),
                      g = as<float>(random_values(31 * 4, 14));
  const Routed<float> one = route_all(r, logits, bias, 1);
  for (const int threads : {2, 3, 8, 40}) {
    const Routed<float> got = route_all(r, logits, bias, threads);
    EXPECT_TRUE(got.choice == one.choice && got.weight == one.weight && got.scores == one.scores && got.lse == one.lse);
    EXPECT_EQ(sums_of(r, 31, true, logits, one, threads), sums_of(r, 31, true, logits, one, 1));
    EXPECT_EQ(gradient(r, l, logits, bias, g, threads), gradient(r, l, logits, bias, g, 1));
  }
}

TEST(Routing, BiasMovesTowardsTheMean) {
  Values<double> bias{0.5, 0.5, 0.5, 0.5};
  const Values<std::int32_t> counts{1, 3, 2, 2};
  update_bias(4, 0.001, counts.data(), bias.data());
  EXPECT_EQ(bias, (Values<double>{0.501, 0.499, 0.5, 0.5}));
  // The mean of 10, 0, 0 is no binary fraction. Even counts leave the bias exactly as it was.
  Values<float> moved{0, 0, 0}, same{1, 1, 1};
  const Values<float> uneven{10, 0, 0}, even{7, 7, 7};
  update_bias(3, 0.25, uneven.data(), moved.data());
  update_bias(3, 0.25, even.data(), same.data());
  EXPECT_EQ(moved, (Values<float>{-0.25f, 0.25f, 0.25f}));
  EXPECT_EQ(same, (Values<float>{1, 1, 1}));
}

// The routers of transformers 5. MixtralTopKRouter (always renormalised), Qwen3MoeTopKRouter and OlmoeTopKRouter
// (norm_topk_prob) each have load_balancing_loss_func over all tokens. DeepseekV3TopkRouter has one group, and the
// paper's loss of each sequence.
class BesidePyTorch : public ::testing::TestWithParam<std::tuple<RouterScore, bool>> {};

TEST_P(BesidePyTorch, ChoiceWeightsLossesAndGradient) {
  const auto [score, renormalise] = GetParam();
  const bool sigmoid = score == kSigmoid;
  const i64 N = 24, E = 8, k = 3, B = sigmoid ? 2 : 1, T = N / B;
  const Router r{N, E, k, score, renormalise, sigmoid ? 2.5 : 1.0};
  const RouterLosses l{0.01, 0.001, B, T};
  const Values<double> logits = random_values(N * E, 15), d_weight = random_values(N * k, 16),
                       bias = sigmoid ? random_values(E, 17, 0.3) : Values<double>{};
  const auto tensor = [](const Values<double>& v, at::IntArrayRef sizes) {
    return at::from_blob(const_cast<double*>(v.data()), sizes, at::kDouble).clone();
  };
  at::Tensor z = tensor(logits, {N, E}).requires_grad_(true);
  const at::Tensor scores = sigmoid ? z.sigmoid() : at::softmax(z, -1);
  const at::Tensor indices = std::get<1>(at::topk(sigmoid ? scores + tensor(bias, {E}) : scores, k, -1));
  at::Tensor weights = scores.gather(1, indices);
  if (renormalise) weights = weights / (weights.sum(-1, true) + (sigmoid ? 1e-20 : 0.0));
  weights = weights * r.scale;
  const at::Tensor mask = at::zeros({N, E}, at::kDouble).scatter(1, std::get<1>(at::topk(scores, k, -1)), 1.0);
  const at::Tensor shares = sigmoid ? scores / scores.sum(-1, true) : scores;
  const double f = static_cast<double>(E) / static_cast<double>(k);
  at::Tensor balance = (mask.view({B, T, E}).mean(1) * f * shares.view({B, T, E}).mean(1)).sum(-1);
  if (!sigmoid) {  // load_balancing_loss_func: E * sum_e (mean of the mask over tokens * mean of the scores)
    const at::Tensor theirs = (mask.sum(0) / static_cast<double>(N) * (scores.sum(0) / static_cast<double>(N))).sum() *
                              static_cast<double>(E);
    balance = (theirs / static_cast<double>(k)).view({1});
  }
  const at::Tensor z_loss = at::logsumexp(z, -1).pow(2).sum();
  ((weights * tensor(d_weight, {N, k})).sum() + balance.sum() * l.balance + z_loss * l.z).backward();
  const auto values = [](const at::Tensor& t) {
    const at::Tensor flat = t.detach().to(at::kDouble).contiguous();
    return Values<double>(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  };

  const Routed<double> routed = route_all(r, logits, bias);
  EXPECT_EQ(as<double>(routed.choice), values(indices));
  const Bound bound{0x1p-53, N, 8};
  EXPECT_TRUE(close(routed.weight, values(weights), bound));
  const Values<double> sums = sums_of(r, B, sigmoid, logits, routed);
  Values<double> losses(static_cast<std::size_t>(B));
  balance_losses(r, l, sums.data(), losses.data());
  EXPECT_TRUE(close(losses, values(balance), bound));
  EXPECT_NEAR(z_loss_sum(r, routed.lse.data()), z_loss.item<double>(), 1e-12 * z_loss.item<double>());
  expect_gradient(gradient(r, l, logits, bias, d_weight), values(z.grad()), "d_logits");
}

INSTANTIATE_TEST_SUITE_P(Routing, BesidePyTorch,
                         ::testing::Combine(::testing::Values(kSoftmax, kSigmoid), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == kSigmoid ? "Sigmoid" : "Softmax") +
                                  (std::get<1>(info.param) ? "Renormalised" : "AsTheyAre");
                         });

}  // namespace
}  // namespace molen::math::reference
