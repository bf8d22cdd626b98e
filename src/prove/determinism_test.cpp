#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "launch/world.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

// Checks the settings that a run on a device makes in libtorch. On the host these operators have no other form and give
// the same bits.
TEST(Determinism, IsRequiredOfLibtorch) {
  auto setting = suite::setting_of(1, 0, false, DType::kBF16);
  setting.kernels = arch::Kernels::kAten;
  const auto p = program::build(suite::llama(false), setting);
  const auto before = suite::train_threads(p, 2);
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  launch::require_determinism();
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  const auto after = suite::train_threads(p, 2);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(before.hash, after.hash);
}

}  // namespace
}  // namespace molen::prove
