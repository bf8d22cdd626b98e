#include "math/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "math/allocation.h"

// libtorch exports this function but does not declare it in its headers: result = beta result + alpha a b by oneDNN, in
// the dtype of the operands. The declaration is weak, because a libtorch without oneDNN, or with another signature, has
// no such symbol.
namespace at::native {
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}

namespace molen::math {
namespace {

// Below this number of FLOPs a call of oneDNN costs more than it saves: 10 us, measured at 1 and 2 threads. Both
// libraries are equal at about 3 MFLOP.
constexpr std::int64_t kOneDnnFrom = 4'000'000;
// oneDNN's products of a single row corrupt the heap when they add (libtorch 2.13, AVX-512: 1 x 1501 x 1499), and thin
// products are not faster.
constexpr std::int64_t kOneDnnThinnest = 16;

bool intel_or_no_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") || !__builtin_cpu_supports("avx512f");
#else
  return true;
#endif
}

// Tests oneDNN with one small product. libtorch refuses mkldnn_matmul on processors without a fast path in its oneDNN,
// or when the environment (ONEDNN_MAX_CPU_ISA) excludes that path. Which processors these are depends on its version.
bool onednn_multiplies() {
  if (!at::native::mkldnn_matmul || !at::hasMKLDNN()) return false;
  const c10::InferenceMode inference;
  const LibraryCall call;
  std::array<float, 16> a{}, c{};
  a.fill(1);
  const auto square = [](std::array<float, 16>& values) {
    return at::from_blob(values.data(), {4, 4}, at::TensorOptions().dtype(at::kFloat));
  };
  try {
    at::native::mkldnn_matmul(square(a), square(a), square(c), 0.0F, 1.0F);
  } catch (const std::exception&) {
    return false;
  }
  return std::all_of(c.begin(), c.end(), [](float x) { return x == 4; });
}

GemmLibrary choose() {
  const char* name = std::getenv("MOLEN_GEMM");
  if (!name || *name == '\0') {
    // The two FPMATH_MODE variables let oneDNN round fp32 operands to fewer bits. molen's products must stay exact, so
    // the default is then ATen.
    const bool exact = !std::getenv("ONEDNN_DEFAULT_FPMATH_MODE") && !std::getenv("DNNL_DEFAULT_FPMATH_MODE");
    return gemm_library_available(GemmLibrary::kOneDnn) && exact && !intel_or_no_avx512() ? GemmLibrary::kOneDnn
                                                                                          : GemmLibrary::kAten;
  }
  for (const GemmLibrary library : {GemmLibrary::kAten, GemmLibrary::kOneDnn})
    if (name == name_of(library)) {
      if (!gemm_library_available(library)) throw UsageError("MOLEN_GEMM={}: this libtorch has no such products", name);
      return library;
    }
  throw UsageError("MOLEN_GEMM={}: aten or onednn", name);
}

// Returns the library that multiplies products of these sizes.
GemmLibrary library_for(GemmLibrary chosen, std::int64_t m, std::int64_t n, std::int64_t k) {
  const bool worth = 2 * m * n * k >= kOneDnnFrom && std::min({m, n, k}) >= kOneDnnThinnest;
  return worth ? chosen : GemmLibrary::kAten;
}

at::Tensor view(const float* data, std::int64_t rows, std::int64_t columns) {
  return at::from_blob(const_cast<float*>(data), {rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

void product(GemmLibrary library, const at::Tensor& a, const at::Tensor& b, bool accumulate, float* c) {
  const std::int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  const LibraryCall call;
  at::Tensor out = view(c, m, n);
  if (library_for(library, m, n, k) == GemmLibrary::kOneDnn)
    at::native::mkldnn_matmul(a, b, out, accumulate ? 1.0F : 0.0F, 1.0F);
  else if (accumulate)
    at::addmm_out(out, out, a, b);
  else
    at::mm_out(out, a, b);
}

// A short and very wide product, such as the head's logits: each thread computes its own columns with a separate
// product. MKL splits such shapes less well: 256 x 32000 x 512 on two cores takes 32 ms with MKL's split and 28 ms with
// this one.
void wide_product_nt(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                     bool accumulate, float* c) {
  constexpr std::int64_t kGrain = 64;
  const std::int64_t blocks = (n + kGrain - 1) / kGrain;
#pragma omp parallel num_threads(threads)
  {
    const c10::InferenceMode guard;  // each thread has its own mode
    const std::int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    const std::int64_t first = std::min(n, blocks * t / count * kGrain),
                       last = std::min(n, blocks * (t + 1) / count * kGrain);
    if (first < last) {
      at::Tensor out = at::from_blob(c + first, {m, last - first}, {n, 1}, at::TensorOptions().dtype(at::kFloat));
      const at::Tensor right = view(b + first * k, last - first, k).t();
      if (accumulate)
        at::addmm_out(out, out, view(a, m, k), right);
      else
        at::mm_out(out, view(a, m, k), right);
    }
  }
}

}  // namespace

std::string_view name_of(GemmLibrary library) {
  return library == GemmLibrary::kAten ? "aten" : "onednn";
}
bool gemm_library_available(GemmLibrary library) {
  static const bool onednn = onednn_multiplies();
  return library == GemmLibrary::kAten || onednn;
}
GemmLibrary gemm_library() {
  static const GemmLibrary chosen = choose();
  return chosen;
}

void matmul_nt(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
               bool accumulate, float* c) {
  const c10::InferenceMode guard;
  const int threads = at::get_num_threads();
  if (library_for(library, m, n, k) == GemmLibrary::kAten && threads > 1 && m > 1 && n >= 16 * m &&
      n >= 1024 * threads && !omp_in_parallel())
    return wide_product_nt(threads, m, n, k, a, b, accumulate, c);
  product(library, view(a, m, k), view(b, n, k).t(), accumulate, c);
}
void matmul_nn(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
               bool accumulate, float* c) {
  const c10::InferenceMode guard;
  product(library, view(a, m, k), view(b, k, n), accumulate, c);
}
void matmul_tn(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
               bool accumulate, float* c) {
  const c10::InferenceMode guard;
  product(library, view(a, k, m).t(), view(b, k, n), accumulate, c);
}

void matmul_nt(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  matmul_nt(gemm_library(), m, n, k, a, b, accumulate, c);
}
void matmul_nn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  matmul_nn(gemm_library(), m, n, k, a, b, accumulate, c);
}
void matmul_tn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  matmul_tn(gemm_library(), m, n, k, a, b, accumulate, c);
}

}  // namespace molen::math
