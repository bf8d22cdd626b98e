// Tests attention against a plain double loop, against ATen, and against itself (threads, instruction sets, repeats).
#include "math/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "math/test_attention.h"

namespace molen::math {
namespace {

using namespace testing;

struct Result {
  Floats o, lse, d_qkv;
};

// Runs both directions, with outputs and scratch full of NaN and guard bytes after each of them.
Result run(const Inputs& in, int threads = 1, AttentionIsa isa = AttentionIsa::kBest) {
  AttentionShape shape = in.shape;
  shape.threads = threads, shape.isa = isa, shape.alibi = in.slopes.empty() ? nullptr : in.slopes.data();
  constexpr std::size_t kGuard = 64;
  constexpr float kCanary = 12345.0f;
  const auto guarded = [&](std::size_t n) {
    Floats x(n + kGuard, kNaN);
    std::fill(x.begin() + static_cast<std::ptrdiff_t>(n), x.end(), kCanary);
    return x;
  };
  const auto unguard = [&](Floats x, const char* name) {
    for (std::size_t g = x.size() - kGuard; g < x.size(); ++g)
      EXPECT_EQ(x[g], kCanary) << name << " written past its end";
    x.resize(x.size() - kGuard);
    return x;
  };
  Result r{guarded(in.d_o.size()), guarded(static_cast<std::size_t>(shape.B * shape.h * shape.S)),
           guarded(in.qkv.size())};
  Floats scratch = guarded(static_cast<std::size_t>(attention_forward_scratch(shape)) / 4);
  attention_forward(shape, in.qkv.data(), r.o.data(), r.lse.data(), scratch.data());
  unguard(std::move(scratch), "forward scratch");
  scratch = guarded(static_cast<std::size_t>(attention_backward_scratch(shape)) / 4);
  attention_backward(shape, in.d_o.data(), in.qkv.data(), r.o.data(), r.lse.data(), r.d_qkv.data(), scratch.data());
  unguard(std::move(scratch), "backward scratch");
  return {unguard(r.o, "o"), unguard(r.lse, "lse"), unguard(r.d_qkv, "d_qkv")};
}

// Values of p below 2^-100 are zero; inputs and slopes of these tests are below 1e3.
constexpr double kVanishing = 1e-24;

// Checks |got - want| <= factor * eps * magnitude, and that not all values are zero.
void expect_close(const Floats& got, const Sums& want, double factor, const char* name) {
  ASSERT_EQ(got.size(), want.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want.value[i]),
                 bound = factor * FLT_EPSILON * want.magnitude[i] + kVanishing;
    if (!(error <= bound)) {
      FAIL() << name << "[" << i << "] = " << got[i] << ", expected " << want.value[i] << " within " << bound;
    }
    if (bound > 0) worst = std::max(worst, error / bound);
  }
  if (got.size() > 1000) {
    EXPECT_GT(worst, 1e-3) << name << ": a bound that rounding never comes near proves nothing";
  }
}

// A score whose terms sum to M in absolute value has a rounding error of at most (D + 3) M eps. The terms here have
// random signs, so partial sums stay near sqrt(D) terms while M is D terms. The standard deviation of the error is
// therefore below M eps. It becomes the relative error of p, with 2 more for exp and for lse; the sums that follow add
// as little again. The factor allows 6 standard deviations, for the worst of up to a million elements.
double error_factor(const Truth& t) {
  return 6 * (t.largest_score + 3);
}

void expect_true(const Inputs& in, int threads = 1, AttentionIsa isa = AttentionIsa::kBest) {
  SCOPED_TRACE(::testing::Message() << "B=" << in.shape.B << " S=" << in.shape.S << " h=" << in.shape.h
                                    << " k=" << in.shape.k << " D=" << in.shape.D << " alibi=" << !in.slopes.empty()
                                    << " threads=" << threads << " " << name_of(isa));
  const Truth t = truth(in);
  const Result r = run(in, threads, isa);
  const double factor = error_factor(t);
  expect_close(r.o, t.o, factor, "o");
  expect_close(r.lse, t.lse, factor, "lse");
  expect_close(r.d_qkv, t.d_qkv, factor, "d_qkv");
}

std::vector<AttentionIsa> available() {
  std::vector<AttentionIsa> all;
  for (auto isa : {AttentionIsa::kGeneric, AttentionIsa::kAvx2, AttentionIsa::kAvx512})
    if (attention_isa_available(isa)) all.push_back(isa);
  return all;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}
bool same_bits(const Result& a, const Result& b) {
  return same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.d_qkv, b.d_qkv);
}

TEST(Attention, AwkwardSizesOnEveryInstructionSet) {
  for (AttentionIsa isa : available())
    for (i64 S : {1, 7, 63, 129})
      for (i64 D : {8, 20, 64, 80, 128}) expect_true(make_inputs(2, S, 2, 1, D, S == 63), 2, isa);
}

TEST(Attention, LongerThanSeveralTiles) {
  for (AttentionIsa isa : available()) expect_true(make_inputs(1, 513, 2, 1, 64), 1, isa);
  expect_true(make_inputs(1, 513, 1, 1, 128, true));
  expect_true(make_inputs(1, 400, 1, 1, 256));
  expect_true(make_inputs(1, 400, 1, 1, 33));
}

TEST(Attention, GroupedHeads) {
  expect_true(make_inputs(2, 150, 3, 3, 16));
  expect_true(make_inputs(2, 150, 4, 2, 16, true));
  expect_true(make_inputs(1, 301, 6, 2, 16));
  expect_true(make_inputs(1, 150, 11, 1, 8, true));  // more heads on one key head than fit into a piece
  expect_true(make_inputs(2, 61, 18, 2, 8));
}

RC_GTEST_PROP(Attention, AnyShape, ()) {
  const i64 k = *rc::gen::inRange(1, 3), h = k * *rc::gen::inRange(1, 4);
  const Inputs in = make_inputs(*rc::gen::inRange(1, 3), *rc::gen::inRange(1, 200), h, k, *rc::gen::inRange(1, 70),
                                *rc::gen::arbitrary<bool>());
  expect_true(in, *rc::gen::inRange(1, 4), *rc::gen::elementOf(available()));
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Attention, SameBitsForAnyNumberOfThreadsAndOnRepeat) {
  // B*k = 2, so with three or more threads the backward is split by tiles.
  const Inputs in = make_inputs(1, 300, 4, 2, 64);
  for (AttentionIsa isa : available()) {
    const Result one = run(in, 1, isa);
    for (int threads : {1, 2, 3, 5})
      EXPECT_TRUE(same_bits(one, run(in, threads, isa))) << threads << " threads, " << name_of(isa);
  }
}

TEST(Attention, SplitBackwardIsTrueToo) {
  expect_true(make_inputs(1, 300, 4, 2, 20, true), 5);
}

TEST(Attention, LaterTokensNeverReachEarlierOnes) {
  const i64 S = 200, h = 2, D = 32;
  for (AttentionIsa isa : available())
    for (i64 changed : {1, 127, 128, 151}) {
      Inputs in = make_inputs(1, S, h, 1, D);
      const Result before = run(in, 1, isa);
      for (i64 at = changed * in.row(); at < S * in.row(); ++at) in.qkv[at] *= -3;
      const Result after = run(in, 1, isa);
      EXPECT_EQ(std::memcmp(before.o.data(), after.o.data(), static_cast<std::size_t>(changed * h * D) * 4), 0)
          << changed;
      EXPECT_NE(before.o[changed * h * D], after.o[changed * h * D]) << changed;
    }
}

TEST(Attention, NanAndInfinityShow) {
  for (AttentionIsa isa : available())
    for (float bad : {kNaN, std::numeric_limits<float>::infinity()})
      for (i64 column : {3, 64 + 3, 128 + 3}) {  // in q, k, v of one token
        Inputs in = make_inputs(1, 140, 1, 1, 64);
        in.qkv[100 * in.row() + column] = bad;
        const Result r = run(in, 1, isa);
        for (i64 i = 0; i < 140; ++i) {
          const bool hit = column < 64 ? i == 100 : i >= 100;
          if (i >= 95 && !hit) continue;  // rows share a block of 6, where 0 * NaN is NaN
          const float o = r.o[i * 64 + 3];
          if (hit && !(std::isinf(bad) && column == 67)) {
            EXPECT_FALSE(std::isfinite(o)) << i << " column " << column << " " << bad;
          }
          if (!hit) {
            EXPECT_TRUE(std::isfinite(o)) << i << " column " << column << " " << bad;
          }
        }
        EXPECT_TRUE(std::any_of(r.d_qkv.begin(), r.d_qkv.end(), [](float x) { return !std::isfinite(x); }));
      }
}

TEST(Attention, SharpAndFlatSoftmax) {
  Inputs sharp = make_inputs(1, 140, 1, 1, 16);
  for (i64 n = 0; n < 140; ++n)
    for (i64 d = 0; d < 16; ++d) sharp.qkv[n * sharp.row() + d] *= 100;  // scores of hundreds: most of p vanishes
  expect_true(sharp);
  Inputs flat = make_inputs(1, 140, 1, 1, 16);
  for (i64 n = 0; n < 140; ++n)
    for (i64 d = 0; d < 16; ++d) flat.qkv[n * flat.row() + d] = 0;  // p of row i is 1/(i+1) everywhere
  const Result r = run(flat);
  for (i64 i = 0; i < 140; ++i)
    EXPECT_NEAR(r.lse[i], std::log(static_cast<double>(i + 1)), 4 * FLT_EPSILON * (1 + std::log(i + 1.0)));
}

TEST(Attention, AgreesWithAten) {
  const i64 B = 2, S = 200, h = 4, D = 64;
  const Inputs in = make_inputs(B, S, h, h, D);
  const Result ours = run(in, 2);
  const auto qkv = at::from_blob(const_cast<float*>(in.qkv.data()), {B, S, 3, h, D}, at::kFloat);
  const auto heads = [&](i64 i) { return qkv.select(2, i).transpose(1, 2); };
  const auto d_o = at::from_blob(const_cast<float*>(in.d_o.data()), {B, S, h, D}, at::kFloat).transpose(1, 2);
  const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(heads(0), heads(1), heads(2), 0.0, true);
  const auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(d_o, heads(0), heads(1), heads(2), o, lse, 0.0, true);
  const Truth t = truth(in);
  const double factor = 2 * error_factor(t);  // both sides round
  const auto compare = [&](const at::Tensor& theirs, const Floats& got, const Doubles& magnitude, const char* name) {
    const at::Tensor flat = theirs.contiguous();
    ASSERT_EQ(flat.numel(), static_cast<i64>(got.size()));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float x = flat.const_data_ptr<float>()[i];
      if (!(std::abs(x - got[i]) <= factor * FLT_EPSILON * magnitude[i]))
        FAIL() << name << "[" << i << "] " << got[i] << ", ATen " << x;
    }
  };
  compare(o.transpose(1, 2), ours.o, t.o.magnitude, "o");
  compare(lse, ours.lse, t.lse.magnitude, "lse");
  compare(at::stack({dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)}, 2), ours.d_qkv, t.d_qkv.magnitude,
          "d_qkv");
}

TEST(Attention, ScratchIsTheFormulaOfTheHeader) {  // the memory plan uses the same formula
  for (i64 D : {1, 16, 20, 64, 128, 256})
    for (int threads : {1, 7}) {
      const AttentionShape shape{3, 100, 4, 2, D, threads};
      const i64 W = (D + 15) / 16 * 16 + 16;
      EXPECT_EQ(attention_forward_scratch(shape), threads * 4 * (288 * (2 * W + 162) + 256 * W));
      EXPECT_EQ(attention_backward_scratch(shape), threads * 4 * (96 * (2 * W + 290) + 646 * W));
      EXPECT_EQ(attention_forward_scratch(shape) % 64, 0);
      EXPECT_EQ(attention_backward_scratch(shape) % 64, 0);
    }
}

TEST(Attention, ImpossibleShapesAreRefused) {
  float x = 0;
  const auto refused = [&](AttentionShape s) { EXPECT_ANY_THROW(attention_forward(s, &x, &x, &x, &x)); };
  refused({1, 1, 3, 2, 8});
  refused({1, 1, 1, 0, 8});
  refused({1, 1, 1, 1, 257});
  refused({1, 1, 1, 1, 8, 0});
  attention_forward({0, 5, 1, 1, 8}, &x, &x, &x, &x);
  attention_forward({5, 0, 1, 1, 8}, &x, &x, &x, &x);
}

}  // namespace
}  // namespace molen::math
