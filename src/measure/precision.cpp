#include "measure/precision.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/error.h"

namespace molen::measure {
namespace {

struct Sizes {
  std::int64_t tokens, in, out;
  double gflop() const { return 3 * 2.0 * static_cast<double>(tokens * in * out) * 1e-9; }
};
constexpr Sizes kHost{1024, 512, 1408};
constexpr Sizes kDevice{4096, 2048, 5632};  // smaller sizes would measure how fast kernels are launched

at::Device device_of(int cuda_device) {
  return cuda_device < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
}

// The three GEMMs of a layer's matrix in training, as the kernels run them. In bf16 the weight gradient is added to an
// fp32 sum; on a device the GEMM itself adds to it.
struct Layer {
  at::Tensor x, w, dy, y, dx, dw, sum;
  math::GemmLibrary library;  // of the fp32 GEMMs on the host
  Layer(const Sizes& s, at::ScalarType type, at::Device device, math::GemmLibrary of = math::gemm_library())
      : library(of) {
    const at::TensorOptions t = at::TensorOptions().dtype(type).device(device);
    x = at::ones({s.tokens, s.in}, t), w = at::ones({s.out, s.in}, t), dy = at::ones({s.tokens, s.out}, t);
    if (!device.is_cpu()) x.normal_(), w.normal_(), dy.normal_();  // a GPU multiplies equal values faster than others
    y = at::empty({s.tokens, s.out}, t), dx = at::empty({s.tokens, s.in}, t);
    sum = at::zeros({s.out, s.in}, t.dtype(at::kFloat));
    if (type != at::kFloat && device.is_cpu()) dw = at::empty({s.out, s.in}, t);
  }
  double seconds() {
    wait();
    const double start = now().value;
    if (x.device().is_cpu() && x.scalar_type() == at::kFloat)
      multiply_on_host();
    else
      multiply();
    wait();
    return now().value - start;
  }
  void multiply_on_host() const {
    const std::int64_t tokens = x.size(0), in = x.size(1), out = w.size(0);
    const auto *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *pdy = dy.data_ptr<float>();
    math::matmul_nt(library, tokens, out, in, px, pw, false, y.data_ptr<float>());
    math::matmul_nn(library, tokens, in, out, pdy, pw, false, dx.data_ptr<float>());
    math::matmul_tn(library, out, in, tokens, pdy, px, true, sum.data_ptr<float>());
  }
  void multiply() {
    at::mm_out(y, x, w.t());
    at::mm_out(dx, dy, w);
    if (x.scalar_type() == at::kFloat) {
      at::addmm_out(sum, sum, dy.t(), x);
    } else if (dw.defined()) {
      at::mm_out(dw, dy.t(), x);
      sum.add_(dw);
    } else {
      at::addmm_out(sum, sum, dy.t(), x, at::kFloat, 1, 1);
    }
  }
  void wait() const {
    if (!x.device().is_cpu()) at::accelerator::synchronizeDevice(x.device().index());
  }
};

}  // namespace

plan::PrecisionRates measure_precision(int threads, int cuda_device) {
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  const at::Device device = device_of(cuda_device);
  const Sizes sizes = device.is_cpu() ? kHost : kDevice;
  Layer fp32(sizes, at::kFloat, device), bf16(sizes, at::kBFloat16, device);
  double best32 = 1e9, best16 = 1e9;
  for (int i = 0; i < 9; ++i) {
    const double a = fp32.seconds(), b = bf16.seconds();
    if (i == 0) continue;
    best32 = std::min(best32, a);
    best16 = std::min(best16, b);
  }
  return {sizes.gflop() / best32, sizes.gflop() / best16};
}

double measure_gemm(DType compute, int threads, double budget_s, math::GemmLibrary fp32) {
  if (compute != DType::kF32 && compute != DType::kBF16)
    throw Error("measure_gemm: no measurement in {}", name_of(compute));
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  Layer layer(kHost, compute == DType::kF32 ? at::kFloat : at::kBFloat16, at::kCPU, fp32);
  double best = std::numeric_limits<double>::infinity();
  const double start = now().value;
  for (int i = 0; i < 3 || now().value - start < budget_s; ++i) {
    const double s = layer.seconds();
    if (i > 0) best = std::min(best, s);
  }
  return kHost.gflop() / best;
}

}  // namespace molen::measure
