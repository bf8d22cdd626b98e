#include "train/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "base/error.h"

namespace molen::train {
namespace {

// What the ranks' run throws, "" for nothing; a hang ends in the test's own time limit.
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

// The others' errors say what the first one said, and the first is the one that is thrown, with its type.
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
