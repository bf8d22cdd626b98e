#include "train/precision.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/error.h"

namespace molen::train {
namespace {

constexpr std::int64_t kTokens = 1024, kIn = 512, kOut = 1408;
constexpr double kGflop = 3 * 2.0 * kTokens * kIn * kOut * 1e-9;

// The three GEMMs of a layer's matrix in training, as the kernels run them: in bf16 the weight gradient is added to an
// fp32 sum.
struct Layer {
  at::Tensor x, w, dy, y, dx, dw, sum;
  explicit Layer(at::ScalarType t)
      : x(at::ones({kTokens, kIn}, t)),
        w(at::ones({kOut, kIn}, t)),
        dy(at::ones({kTokens, kOut}, t)),
        y(at::empty({kTokens, kOut}, t)),
        dx(at::empty({kTokens, kIn}, t)),
        dw(at::empty({kOut, kIn}, t)),
        sum(at::zeros({kOut, kIn}, at::kFloat)) {}
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

}  // namespace

plan::PrecisionRates measure_precision(int threads) {
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  Layer fp32(at::kFloat), bf16(at::kBFloat16);
  double best32 = 1e9, best16 = 1e9;
  for (int i = 0; i < 9; ++i) {
    const double a = fp32.seconds(), b = bf16.seconds();
    if (i == 0) continue;
    best32 = std::min(best32, a);
    best16 = std::min(best16, b);
  }
  return {kGflop / best32, kGflop / best16};
}

double measure_gemm(DType compute, int threads, double budget_s) {
  if (compute != DType::kF32 && compute != DType::kBF16)
    throw Error("measure_gemm: no measurement in {}", name_of(compute));
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  Layer layer(compute == DType::kF32 ? at::kFloat : at::kBFloat16);
  double best = std::numeric_limits<double>::infinity();
  const double start = now().value;
  for (int i = 0; i < 3 || now().value - start < budget_s; ++i) {
    const double s = layer.seconds();
    if (i > 0) best = std::min(best, s);
  }
  return kGflop / best;
}

}  // namespace molen::train
