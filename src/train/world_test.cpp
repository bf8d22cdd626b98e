#include "train/world.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "base/error.h"
#include "train/layouts_suite.h"

namespace molen::train {
namespace {

// Returns the error that the ranks' run throws, "" for none; a hang ends in the test's own time limit.
std::string thrown_by(int ranks, const std::function<void(comm::Communicator&)>& body) {
  const auto begun = std::chrono::steady_clock::now();
  std::string text;
  try {
    run_ranks(launch_threads(ranks), body);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  return text;
}

// Checks what a run on a device asks of libtorch. On the host these operators have no other form and leave the same
// bits.
TEST(Determinism, IsRequiredOfLibtorch) {
  auto setting = suite::setting_of(1, 0, false, DType::kBF16);
  setting.kernels = arch::Kernels::kAten;
  const auto p = program::build(suite::llama(false), setting);
  const auto before = suite::train_threads(p, 2);
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  require_determinism();
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  const auto after = suite::train_threads(p, 2);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(before.hash, after.hash);
}

TEST(RunRanks, AllFinishAtTheirOwnTime) {
  std::atomic<int> sum = 0;
  EXPECT_EQ(thrown_by(4,
                      [&](comm::Communicator& world) {
                        std::int64_t one = 1;
                        world.all_reduce(&one, 1, DType::kI64, comm::Reduce::kSum);
                        sum += static_cast<int>(one);
                      }),
            "");
  EXPECT_EQ(sum, 16);
}

TEST(RunRanks, ARankThatReturnsEarlyIsNamed) {
  for (const bool point_to_point : {false, true}) {
    const std::string text = thrown_by(4, [&](comm::Communicator& world) {
      double x = 1.0;
      world.all_reduce(&x, 1, DType::kF64, comm::Reduce::kSum);
      if (world.rank() == 2) return;
      if (point_to_point)
        world.recv(&x, 1, DType::kF64, 2);
      else
        world.all_reduce(&x, 1, DType::kF64, comm::Reduce::kSum);
    });
    EXPECT_NE(text.find("rank 2 has left"), std::string::npos) << text;
  }
}

// The other ranks' errors repeat the first one's text; the first error is thrown, with its own type.
TEST(RunRanks, TheFirstErrorIsThrown) {
  EXPECT_THROW(run_ranks(launch_threads(3),
                         [](comm::Communicator& world) {
                           if (world.rank() == 1) throw UsageError("rank 1 cannot");
                           world.barrier();
                         }),
               UsageError);
}

}  // namespace
}  // namespace molen::train
