#include "train/precision.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "base/clock.h"

namespace molen::train {

plan::PrecisionRates measure_precision(int threads) {
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  // A layer's GEMM: large enough for a steady rate, small enough to be done in a few milliseconds.
  constexpr std::int64_t m = 1024, k = 512, n = 1408;
  const auto rate = [&](at::ScalarType type) {
    const at::Tensor a = at::ones({m, k}, type), b = at::ones({n, k}, type);
    at::Tensor out = at::empty({m, n}, type);
    double best = 0.0;
    for (int i = 0; i < 6; ++i) {
      const double start = now().value;
      at::mm_out(out, a, b.t());
      const double seconds = now().value - start;
      if (i > 0) best = std::max(best, 2.0 * m * k * n / seconds * 1e-9);
    }
    return best;
  };
  return {rate(at::kFloat), rate(at::kBFloat16)};
}

}  // namespace molen::train
