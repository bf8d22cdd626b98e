// Measures this machine's GEMM rate at the shape of a layer, for `precision.compute = "auto"`, `molen doctor`, and the
// peak of a CPU by which MFU divides.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "math/gemm.h"
#include "plan/resolve.h"

namespace molen::measure {

inline constexpr std::string_view kMeasuredGemm = "1024x512x1408";  // tokens x inputs x outputs

// Measures both types in turn, so that other work on the machine slows both alike; returns the best rate of each. Runs
// on the CPU, or on the CUDA device with the given index.
plan::PrecisionRates measure_precision(int threads, int cuda_device = -1);

// Returns GFLOP/s in one type (fp32 or bf16; another throws Error): the best of as many rounds as fit in `budget_s`
// seconds, but at least two, after a warm-up round. `fp32`: the library that multiplies in that type.
double measure_gemm(DType compute, int threads, double budget_s, math::GemmLibrary fp32 = math::gemm_library());

}  // namespace molen::measure
