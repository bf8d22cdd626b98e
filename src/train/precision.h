// How fast this machine multiplies matrices of a layer's shape: behind `precision.compute = "auto"`, `molen doctor` and
// the peak that MFU is taken against on a CPU.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "math/gemm.h"
#include "plan/resolve.h"

namespace molen::train {

inline constexpr std::string_view kMeasuredGemm = "1024x512x1408";  // tokens x inputs x outputs

// Both types in turn, so that other work on the machine slows both alike; the best of each. On the CPU, or on a CUDA
// device by its index.
plan::PrecisionRates measure_precision(int threads, int cuda_device = -1);

// GFLOP/s of one type (fp32 or bf16; another throws Error): the best of as many rounds as fit in `budget_s` seconds, at
// least two after one that is not counted. `fp32`: who multiplies in that type.
double measure_gemm(DType compute, int threads, double budget_s, math::GemmLibrary fp32 = math::gemm_library());

}  // namespace molen::train
