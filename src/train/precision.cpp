#include "train/precision.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "base/clock.h"

namespace molen::train {

plan::PrecisionRates measure_precision(int threads) {
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  // The three GEMMs of a layer's matrix in training, as the kernels run them: in bf16 the weight gradient is added to
  // an fp32 sum.
  constexpr std::int64_t n = 1024, in = 512, out = 1408;
  struct Layer {
    at::Tensor x, w, dy, y, dx, dw, sum;
    explicit Layer(at::ScalarType t)
        : x(at::ones({n, in}, t)),
          w(at::ones({out, in}, t)),
          dy(at::ones({n, out}, t)),
          y(at::empty({n, out}, t)),
          dx(at::empty({n, in}, t)),
          dw(at::empty({out, in}, t)),
          sum(at::zeros({out, in}, at::kFloat)) {}
    double seconds() {
      const double start = now().value;
      at::mm_out(y, x, w.t());
      at::mm_out(dx, dy, w);
      if (dw.scalar_type() == at::kFloat) {
        at::addmm_out(sum, sum, dy.t(), x);
      } else {
        at::mm_out(dw, dy.t(), x);
        sum.add_(dw);
      }
      return now().value - start;
    }
  };
  Layer fp32(at::kFloat), bf16(at::kBFloat16);
  // Alternating, best of each: other work on the machine slows both alike.
  double best32 = 1e9, best16 = 1e9;
  for (int i = 0; i < 9; ++i) {
    const double a = fp32.seconds(), b = bf16.seconds();
    if (i == 0) continue;
    best32 = std::min(best32, a);
    best16 = std::min(best16, b);
  }
  constexpr double flops = 3 * 2.0 * n * in * out * 1e-9;
  return {flops / best32, flops / best16};
}

}  // namespace molen::train
