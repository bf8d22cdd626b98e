#include "train/verify_layouts.h"

#include <gtest/gtest.h>

namespace molen::train {
namespace {

VerifyRow row(DType compute, double gradients, const std::string& failure = "") {
  VerifyRow r;
  r.compute = compute;
  r.bounds = {1, 1, 1, 1};
  r.difference.gradients = gradients;
  r.failure = failure;
  return r;
}

TEST(VerifyLayouts, VerdictCountsLayoutsAndNotRuns) {
  EXPECT_EQ(
      verdict({row(DType::kF64, 0.25), row(DType::kF64, 0.125), row(DType::kF32, 0.5), row(DType::kF32, 0)}, 2),
      "2 layouts in fp64 and fp32, 4 runs: 2 of them the same model; the largest difference is 0.5000 of its bound");
}

// The first of three layouts differs in one type, the second in both.
TEST(VerifyLayouts, ALayoutThatDiffersInOneTypeDiffers) {
  const std::string said = verdict({row(DType::kF64, 0), row(DType::kF64, 2, "loss"), row(DType::kF64, 0),
                                    row(DType::kF32, 4, "loss"), row(DType::kF32, 2, "loss"), row(DType::kF32, 0)},
                                   3);
  EXPECT_EQ(said,
            "3 layouts in fp64 and fp32, 6 runs: 1 of them the same model; the largest difference is 4.0000 of "
            "its bound");
}

}  // namespace
}  // namespace molen::train
