// Tests attention over rows in bf16 against a double loop over the same rows, and against itself (threads, kernels).
#include "math/attention_narrow.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cfloat>
#include <cstring>

#include "math/attention_narrow_kernels.h"
#include "math/test_attention.h"

namespace molen::math {
namespace attention_detail {
extern const NarrowAttention kNarrowOnTilesInMemory;  // attention_narrow_tiles_test.cpp
}
namespace {

using namespace molen::math::testing;
using Halves = std::vector<std::uint16_t>;

constexpr double kRoundoff = 0x1p-8;          // of bf16, which has 8 bits
constexpr std::uint16_t kUnwritten = 0x7fc1;  // a NaN that no kernel writes

std::uint16_t rounded(float x) {
  return c10::BFloat16(x).x;
}
float wide(std::uint16_t x) {
  return static_cast<float>(c10::BFloat16(x, c10::BFloat16::from_bits()));
}
Halves rounded(const Floats& values) {
  Halves all;
  for (const float x : values) all.push_back(rounded(x));
  return all;
}

// Returns inputs as in fp32, with values that bf16 holds exactly.
Inputs narrow_inputs(i64 B, i64 S, i64 h, i64 k, i64 D, bool alibi = false) {
  Inputs in = make_inputs(B, S, h, k, D, alibi);
  for (Floats* values : {&in.qkv, &in.d_o})
    for (float& x : *values) x = wide(rounded(x));
  return in;
}

struct Result {
  Halves o, d_qkv;
  Floats lse;
  bool operator==(const Result& r) const {
    return o == r.o && d_qkv == r.d_qkv && std::memcmp(lse.data(), r.lse.data(), 4 * lse.size()) == 0;
  }
};

// Fills outputs and scratch with NaN, with guards after them.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t n, T fill) : values_(n + kGuard, fill) {
    std::fill(values_.begin() + static_cast<std::ptrdiff_t>(n), values_.end(), T(4321));
  }
  T* data() { return values_.data(); }
  std::vector<T> take(const char* name) {
    for (std::size_t g = values_.size() - kGuard; g < values_.size(); ++g)
      EXPECT_EQ(values_[g], T(4321)) << name << " written past its end";
    values_.resize(values_.size() - kGuard);
    return std::move(values_);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::vector<T> values_;
};

struct Kernels {
  std::string name;
  const attention_detail::NarrowAttention* code;
};
Kernels kernels_of(AttentionIsa isa) {
  return {name_of(isa), &attention_detail::narrow_kernels(isa)};
}
Kernels best() {
  return kernels_of(narrow_attention_isa());
}
Kernels tiles_in_memory() {
  return {"tiles in memory", &attention_detail::kNarrowOnTilesInMemory};
}

std::vector<Kernels> both() {
  return {best(), tiles_in_memory()};
}

Result run(const Inputs& in, int threads, const Kernels& kernels) {
  AttentionShape shape = in.shape;
  shape.threads = threads, shape.alibi = in.slopes.empty() ? nullptr : in.slopes.data();
  const Halves qkv = rounded(in.qkv), d_o = rounded(in.d_o);
  Guarded<std::uint16_t> o(d_o.size(), kUnwritten), d_qkv(qkv.size(), kUnwritten);
  Guarded<float> lse(static_cast<std::size_t>(shape.B * shape.h * shape.S), kNaN),
      forward(static_cast<std::size_t>(narrow_attention_forward_scratch(shape)) / 4, kNaN),
      backward(static_cast<std::size_t>(narrow_attention_backward_scratch(shape)) / 4, kNaN);
  attention_detail::run_forward(*kernels.code, shape, qkv.data(), o.data(), lse.data(), forward.data());
  attention_detail::run_backward(*kernels.code, shape, d_o.data(), qkv.data(), o.data(), lse.data(), d_qkv.data(),
                                 backward.data());
  forward.take("forward scratch");
  backward.take("backward scratch");
  return {o.take("o"), d_qkv.take("d_qkv"), lse.take("lse")};
}

// Checks |got - want| <= (roundings * u + fp32) * magnitude at every element, and that some errors come near the bound.
template <class Wide, class Roundings>
void expect_close(std::size_t count, const Wide& got, const Sums& want, const Roundings& roundings, double in_fp32,
                  const char* name) {
  ASSERT_EQ(count, want.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double error = std::abs(static_cast<double>(got(i)) - want.value[i]),
                 bound = (roundings(i) * kRoundoff + in_fp32 * FLT_EPSILON) * want.magnitude[i] + 1e-24;
    if (!(error <= bound))
      FAIL() << name << "[" << i << "] = " << got(i) << ", expected " << want.value[i] << " within " << bound;
    worst = std::max(worst, error / bound);
  }
  if (count > 1000) {
    EXPECT_GT(worst, 1e-3) << name << ": a bound that rounding never comes near proves nothing";
  }
}

std::vector<Kernels> available() {
  std::vector<Kernels> all{tiles_in_memory()};
  for (auto isa : {AttentionIsa::kGeneric, AttentionIsa::kAvx2, AttentionIsa::kAvx512, AttentionIsa::kAvx512Bf16,
                   AttentionIsa::kAmx})
    if (attention_isa_available(isa)) all.push_back(kernels_of(isa));
  return all;
}

// With u the roundoff of bf16 and magnitudes the sums of |terms|, rounding to bf16 costs at most:
//   o       p before p v, and o itself: 2 u; the products and lse are in fp32, with the bound of attention_test.cpp
//   dv      p and dv: 2 u
//   dk, dq  ds and the result: 2 u; and delta = d_o . o of a rounded o, 2 u of a part of the magnitude
void expect_true(const Inputs& in, int threads, const std::vector<Kernels>& all) {
  const AttentionShape& s = in.shape;
  const Truth t = truth(in);
  const double in_fp32 = 6 * (t.largest_score + 3);
  const auto of_gradient = [&](std::size_t i) { return static_cast<i64>(i) % in.row() >= (s.h + s.k) * s.D ? 2 : 4; };
  for (const Kernels& kernels : all) {
    SCOPED_TRACE(::testing::Message() << "B=" << s.B << " S=" << s.S << " h=" << s.h << " k=" << s.k << " D=" << s.D
                                      << " alibi=" << !in.slopes.empty() << " threads=" << threads << " "
                                      << kernels.name);
    const Result r = run(in, threads, kernels);
    const auto o = [&](std::size_t i) { return wide(r.o[i]); };
    const auto lse = [&](std::size_t i) { return r.lse[i]; };
    const auto d_qkv = [&](std::size_t i) { return wide(r.d_qkv[i]); };
    expect_close(
        r.o.size(), o, t.o, [](std::size_t) { return 2; }, in_fp32, "o");
    expect_close(
        r.lse.size(), lse, t.lse, [](std::size_t) { return 0; }, in_fp32, "lse");
    expect_close(r.d_qkv.size(), d_qkv, t.d_qkv, of_gradient, in_fp32, "d_qkv");
  }
}

// Blocks have 6 rows (16 on tiles, of 32 terms), a product adds 2 terms in a pair, vectors have 4 to 16 columns, strips
// 64, tiles 128 keys and 96 queries.
TEST(NarrowAttention, AwkwardSizesOnEveryInstructionSet) {
  for (i64 S : {1, 7, 63, 129})
    for (i64 D : {1, 8, 31, 33, 64, 80, 128}) expect_true(narrow_inputs(1, S, 2, 1, D, S == 63), 2, available());
}

TEST(NarrowAttention, LongerThanSeveralTiles) {
  expect_true(narrow_inputs(1, 389, 1, 1, 64), 1, available());
  expect_true(narrow_inputs(1, 290, 1, 1, 128, true), 3, both());
  expect_true(narrow_inputs(1, 133, 1, 1, 256), 1, both());
  expect_true(narrow_inputs(1, 290, 1, 1, 33), 2, available());
}

TEST(NarrowAttention, GroupedHeads) {
  expect_true(narrow_inputs(2, 150, 3, 3, 16), 1, both());
  expect_true(narrow_inputs(2, 150, 4, 2, 16, true), 3, both());
  expect_true(narrow_inputs(1, 301, 6, 2, 16), 1, both());
  // More heads share one key head than fit into a piece.
  expect_true(narrow_inputs(1, 150, 11, 1, 8, true), 1, both());
}

RC_GTEST_PROP(NarrowAttention, AnyShape, ()) {
  const i64 k = *rc::gen::inRange(1, 3), h = k * *rc::gen::inRange(1, 4);
  const Inputs in = narrow_inputs(*rc::gen::inRange(1, 3), *rc::gen::inRange(1, 150), h, k, *rc::gen::inRange(1, 50),
                                  *rc::gen::arbitrary<bool>());
  expect_true(in, *rc::gen::inRange(1, 4), {*rc::gen::elementOf(available())});
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(NarrowAttention, SameBitsForAnyNumberOfThreadsAndOnRepeat) {
  // B*k = 2, so with three or more threads the backward is split by tiles.
  const Inputs in = narrow_inputs(1, 300, 4, 2, 40);
  for (const Kernels& kernels : available()) {
    const Result one = run(in, 1, kernels);
    for (int threads : {1, 2, 3, 5})
      EXPECT_TRUE(one == run(in, threads, kernels)) << threads << " threads, " << kernels.name;
  }
}

TEST(NarrowAttention, CallersGetTheKernelsThatTheyAskFor) {
  using namespace attention_detail;
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kGeneric), &kNarrowGeneric);
#if defined(__x86_64__)
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kAvx2), &kNarrowAvx2);
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kAvx512), &kNarrowAvx512);
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kAvx512Bf16), &kNarrowAvx512Bf16);
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kAmx), &kNarrowAmx);
#endif
  EXPECT_EQ(&narrow_kernels(AttentionIsa::kBest), &narrow_kernels(narrow_attention_isa()));
  const Inputs in = narrow_inputs(1, 150, 4, 2, 40);
  const Halves qkv = rounded(in.qkv), d_o = rounded(in.d_o);
  for (const AttentionIsa isa : {AttentionIsa::kBest, AttentionIsa::kGeneric, AttentionIsa::kAvx2,
                                 AttentionIsa::kAvx512, AttentionIsa::kAvx512Bf16, AttentionIsa::kAmx}) {
    if (!attention_isa_available(isa)) continue;
    AttentionShape shape = in.shape;
    shape.isa = isa;
    Result r{Halves(d_o.size()), Halves(qkv.size()), Floats(static_cast<std::size_t>(shape.h * shape.S))};
    Floats scratch(static_cast<std::size_t>(
                       std::max(narrow_attention_forward_scratch(shape), narrow_attention_backward_scratch(shape))) /
                   4);
    narrow_attention_forward(shape, qkv.data(), r.o.data(), r.lse.data(), scratch.data());
    narrow_attention_backward(shape, d_o.data(), qkv.data(), r.o.data(), r.lse.data(), r.d_qkv.data(), scratch.data());
    EXPECT_TRUE(r == run(in, 1, kernels_of(isa))) << kernels_of(isa).name;
  }
}

// Tensor ranks compute one key/value head, or a part of the query heads that share it.
TEST(NarrowAttention, HeadsAloneAreTheSameBits) {
  const i64 S = 150, D = 24;
  const Inputs all = narrow_inputs(1, S, 4, 2, D);
  for (const Kernels& kernels : both()) {
    const Result whole = run(all, 1, kernels);
    for (const i64 heads : {1, 2}) {
      Inputs one = narrow_inputs(1, S, heads, 1, D);  // the first heads on key head 1
      const auto copy = [&](i64 n, i64 to, i64 from, i64 count) {
        std::copy_n(all.qkv.begin() + n * all.row() + from * D, count * D, one.qkv.begin() + n * one.row() + to * D);
      };
      for (i64 n = 0; n < S; ++n) {
        copy(n, 0, 2, heads), copy(n, heads, 5, 1), copy(n, heads + 1, 7, 1);
        std::copy_n(all.d_o.begin() + (n * 4 + 2) * D, heads * D, one.d_o.begin() + n * heads * D);
      }
      const Result part = run(one, 1, kernels);
      for (i64 n = 0; n < S; ++n) {
        const auto same = [&](const Halves& a, i64 at, const Halves& b, i64 to, i64 count) {
          return std::memcmp(&a[static_cast<std::size_t>(at)], &b[static_cast<std::size_t>(to)],
                             static_cast<std::size_t>(count) * 2) == 0;
        };
        ASSERT_TRUE(same(part.o, n * heads * D, whole.o, (n * 4 + 2) * D, heads * D)) << n;
        ASSERT_TRUE(same(part.d_qkv, n * one.row(), whole.d_qkv, n * all.row() + 2 * D, heads * D)) << n;
        if (heads == 2) {
          ASSERT_TRUE(same(part.d_qkv, n * one.row() + 2 * D, whole.d_qkv, n * all.row() + 5 * D, D)) << n;
        }
      }
    }
  }
}

TEST(NarrowAttention, LaterTokensDoNotReachEarlierOnes) {
  for (const Kernels& kernels : available())
    for (i64 changed : {1, 5, 64, 127, 128}) {
      const i64 S = 140, h = 2, D = 20;
      Inputs in = narrow_inputs(1, S, h, 1, D);
      const Result before = run(in, 1, kernels);
      for (i64 at = changed * in.row(); at < S * in.row(); ++at) in.qkv[static_cast<std::size_t>(at)] *= -3;
      const Result after = run(in, 1, kernels);
      EXPECT_EQ(std::memcmp(before.o.data(), after.o.data(), static_cast<std::size_t>(changed * h * D) * 2), 0);
      EXPECT_NE(before.o[static_cast<std::size_t>(changed * h * D)],
                after.o[static_cast<std::size_t>(changed * h * D)]);
    }
}

// A sequence of one token sees only itself: o is exactly its value, and its query and key have zero gradient.
TEST(NarrowAttention, AShareOfOneGivesTheValueItself) {
  for (const Kernels& kernels : available()) {
    const Inputs in = narrow_inputs(3, 1, 2, 2, 33);
    const Result r = run(in, 1, kernels);
    for (i64 b = 0; b < 3; ++b)
      for (i64 x = 0; x < 66; ++x) {
        EXPECT_EQ(wide(r.o[static_cast<std::size_t>(b * 66 + x)]),
                  in.qkv[static_cast<std::size_t>(b * in.row() + 132 + x)]);
        EXPECT_EQ(wide(r.d_qkv[static_cast<std::size_t>(b * in.row() + 132 + x)]),
                  in.d_o[static_cast<std::size_t>(b * 66 + x)]);
        EXPECT_NEAR(wide(r.d_qkv[static_cast<std::size_t>(b * in.row() + x)]), 0, 1e-3);
      }
  }
}

TEST(NarrowAttention, NanAndInfinityShow) {
  for (const Kernels& kernels : available())
    for (const auto& [bad, at] : {std::pair(kNaN, 100), {std::numeric_limits<float>::infinity(), 100}, {kNaN, 111}})
      for (i64 column : {3, 64 + 3, 128 + 3}) {  // in q, k, v of one token
        Inputs in = narrow_inputs(1, 140, 1, 1, 64);
        in.qkv[static_cast<std::size_t>(at * in.row() + column)] = bad;
        const Result r = run(in, 1, kernels);
        for (i64 i = 0; i < 140; ++i) {
          const bool hit = column < 64 ? i == at : i >= at;
          if (i >= at - 15 && !hit) continue;  // rows share a block of 6 or 16 and a pair, where 0 * NaN is NaN
          const float o = wide(r.o[static_cast<std::size_t>(i * 64 + 3)]);
          if (!hit) {
            EXPECT_TRUE(std::isfinite(o)) << i << " column " << column << " " << bad;
          } else if (!(std::isinf(bad) && column == 67)) {
            EXPECT_FALSE(std::isfinite(o)) << i << " column " << column << " " << bad;
          }
        }
        EXPECT_TRUE(std::any_of(r.d_qkv.begin(), r.d_qkv.end(), [](auto x) { return !std::isfinite(wide(x)); }));
      }
}

TEST(NarrowAttention, ScratchIsTheFormulaOfTheHeader) {  // the memory plan uses the same formula
  for (i64 D : {1, 20, 33, 64, 256})
    for (int threads : {1, 2, 7}) {
      const AttentionShape shape{1, 300, 4, 2, D, threads};
      const i64 W = (D + 15) / 16 * 16 + 16, A = ((D + 1) / 2 + 15) / 16 * 16 + 16;
      EXPECT_EQ(narrow_attention_forward_scratch(shape), threads * 4 * (416 * A + 352 * W + 4896));
      EXPECT_EQ(narrow_attention_backward_scratch(shape),
                threads * 4 * (448 * A + 512 * W + 21696) + (threads == 7 ? 0 : threads * 4 * 2 * 300 * W));
      EXPECT_EQ(narrow_attention_forward_scratch(shape) % 64, 0);
      EXPECT_EQ(narrow_attention_backward_scratch(shape) % 64, 0);
    }
}

TEST(NarrowAttention, ImpossibleShapesAreRefused) {
  std::uint16_t x = 0;
  float y = 0;
  const auto refused = [&](AttentionShape s) { EXPECT_ANY_THROW(narrow_attention_forward(s, &x, &x, &y, &y)); };
  refused({1, 1, 3, 2, 8});
  refused({1, 1, 1, 1, 257});
  refused({1, 1, 1, 1, 8, 0});
  narrow_attention_forward({0, 5, 1, 1, 8}, &x, &x, &y, &y);
  narrow_attention_backward({0, 5, 1, 1, 8}, &x, &x, &x, &y, &x, &y);
  narrow_attention_backward({5, 0, 1, 1, 8}, &x, &x, &x, &y, &x, &y);
}

}  // namespace
}  // namespace molen::math
