// Tests the measurement behind precision.compute = "auto": the same code on a CPU and on a CUDA device.
#include "measure/precision.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace molen::measure {
namespace {

// `most` is more GFLOP/s than any such device has. GEMMs that did not run would seem to be faster than that.
void check(const plan::PrecisionRates& rates, const char* where, double most) {
  fmt::print("{}: fp32 {:.1f}, bf16 {:.1f} GFLOP/s\n", where, rates.fp32, rates.bf16);
  for (const double rate : {rates.fp32, rates.bf16}) {
    EXPECT_TRUE(std::isfinite(rate));
    EXPECT_GT(rate, 0.1);
    EXPECT_LT(rate, most);
  }
}

TEST(Precision, BothTypesAreMeasuredOnTheCpu) {
  check(measure_precision(1), "cpu", 1e5);
}

TEST(Precision, BothTypesAreMeasuredOnADevice) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA in this libtorch";
  check(measure_precision(1, 0), "cuda", 1e7);
}

}  // namespace
}  // namespace molen::measure
