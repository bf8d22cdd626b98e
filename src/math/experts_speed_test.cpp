// Compares the times of a mixture of experts with dense products of the same FLOPs. This is not a test: run it alone on
// an idle machine with
//   math_test --gtest_also_run_disabled_tests --gtest_filter='ExpertsSpeed.*'
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "math/experts.h"
#include "math/gemm.h"
#include "math/reference_routing.h"
#include "math/test_experts.h"

namespace molen::math {
namespace {

using namespace testing;
using i64 = std::int64_t;
using Floats = Values<float>;

// Returns the best times of alternating runs, in ms.
Values<double> best_times(const std::vector<std::function<void()>>& all) {
  constexpr int kRuns = 9;
  Values<double> best(all.size(), 1e9);
  for (int run = 0; run < kRuns; ++run)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      all[i]();
      best[i] =
          std::min(best[i], 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  return best;
}

// With skew 0, experts are equally likely. With a larger skew, an expert's likelihood falls with its number.
void measure(int threads, i64 N, i64 d, i64 f, i64 E, i64 k, double skew) {
  at::set_num_threads(threads);
  const reference::Router router{N, E, k, reference::RouterScore::kSoftmax, true, 1.0};
  Floats logits = as<float>(random_values(N * E, 1)), weight(static_cast<std::size_t>(N * k)), scores(logits.size()),
         lse(static_cast<std::size_t>(N)), d_weight(weight.size()), d_logits(logits.size());
  for (i64 i = 0; i < N * E; ++i)
    logits[static_cast<std::size_t>(i)] -= static_cast<float>(skew * static_cast<double>(i % E));
  Values<std::int32_t> choice(weight.size()), counts(static_cast<std::size_t>(E)), offsets(counts.size() + 1),
      place(weight.size());
  const i64 M = N * k;
  const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
  Floats x = as<float>(random_values(N * d, 2)), w = as<float>(random_values(E * f * d, 3)), rows(size(M * d)),
         y(size(M * f)), d_rows(size(M * d)), d_w(w.size()), out(x.size());
  GuardedScratch scratch(grouped_tn_scratch(threads, f));
  const Groups g{E, f, d, offsets.data()};
  const Slots s{N, k, d, place.data()};
  const auto each = [&](const auto& product) {
    for (i64 e = 0; e < E; ++e)
      if (g.rows(e) > 0) product(e, g.first(e), g.rows(e));
  };
  const Values<double> ms = best_times({
      [&] {
        reference::route<float>(threads, router, logits.data(), nullptr, choice.data(), weight.data(), scores.data(),
                                lse.data());
        expert_order(N, k, E, choice.data(), counts.data(), offsets.data(), place.data());
      },
      [&] { dispatch(threads, s, x.data(), rows.data()); },
      [&] { matmul_nt(M, f, d, rows.data(), w.data(), false, y.data()); },
      [&] { grouped_nt(g, rows.data(), w.data(), y.data()); },
      [&] {
        each([&](i64 e, i64 first, i64 n) {
          matmul_nt(n, f, d, rows.data() + first * d, w.data() + e * f * d, false, y.data() + first * f);
        });
      },
      [&] { matmul_nn(M, d, f, y.data(), w.data(), false, d_rows.data()); },
      [&] { grouped_nn(g, y.data(), w.data(), d_rows.data()); },
      [&] {
        each([&](i64 e, i64 first, i64 n) {
          matmul_nn(n, d, f, y.data() + first * f, w.data() + e * f * d, false, d_rows.data() + first * d);
        });
      },
      [&] { matmul_tn(f, d, M, y.data(), rows.data(), false, d_w.data()); },
      [&] { grouped_tn(g, y.data(), rows.data(), false, d_w.data(), scratch.span()); },
      [&] {
        each([&](i64 e, i64 first, i64 n) {
          matmul_tn(f, d, n, y.data() + first * f, rows.data() + first * d, false, d_w.data() + e * f * d);
        });
      },
      [&] { combine(threads, s, weight.data(), rows.data(), false, out.data()); },
      [&] {
        combine_backward(threads, s, weight.data(), x.data(), rows.data(), d_rows.data(), d_weight.data());
        dispatch_backward(threads, s, d_rows.data(), false, out.data());
      },
      [&] {
        reference::route_backward<float>(threads, router, {}, logits.data(), scores.data(), lse.data(), choice.data(),
                                         d_weight.data(), nullptr, d_logits.data());
      },
  });
  std::printf("threads %d, N %ld d %ld f %ld E %ld k %ld skew %.2f, %.1f GFLOP a product: ", threads, long(N), long(d),
              long(f), long(E), long(k), skew, 2e-9 * static_cast<double>(M * d * f));
  std::printf("route+order %.2f dispatch %.2f combine %.2f their backward %.2f route's %.2f ms\n", ms[0], ms[1], ms[11],
              ms[12], ms[13]);
  for (const auto& [name, i] : {std::pair<const char*, std::size_t>{"x W^T", 2}, {"d_y W", 5}, {"d_y^T x", 8}})
    std::printf("  %-8s one dense product %6.1f ms | tiles %6.1f (%.2f) | one expert after another %6.1f (%.2f)\n",
                name, ms[i], ms[i + 1], ms[i + 1] / ms[i], ms[i + 2], ms[i + 2] / ms[i]);
  std::fflush(stdout);
}

TEST(ExpertsSpeed, DISABLED_Table) {
  const int before = at::get_num_threads();
  for (const int threads : {1, before}) {
    measure(threads, 2048, 512, 1408, 16, 4, 0.0);
    measure(threads, 2048, 512, 1408, 16, 4, 0.3);
    measure(threads, 2048, 512, 256, 64, 8, 0.0);
    measure(threads, 256, 512, 1408, 64, 4, 0.0);
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace molen::math
