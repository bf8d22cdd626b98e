#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/comm_suite.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"

namespace molen::comm {
namespace {

// What each rank's body threw, "" if nothing.
template <class Body>
std::vector<std::string> on_threads(int ranks, ThreadOptions options, Body body) {
  ThreadWorld world(ranks, options);
  std::vector<std::unique_ptr<Communicator>> c;
  for (int r = 0; r < ranks; ++r) c.push_back(world.communicator(r));
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          body(*c[static_cast<std::size_t>(r)]);
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(r)] = e.what();
        }
        c[static_cast<std::size_t>(r)].reset();
      });
  }
  return errors;
}

TEST(Self, Suite) {
  const auto self = make_self();
  EXPECT_EQ(suite::Suite(*self).run(), "");
}

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, Suite) {
  for (const std::string& e : on_threads(GetParam(), {}, [](Communicator& c) {
         if (const std::string wrong = suite::Suite(c).run(); !wrong.empty()) throw Error(wrong);
       }))
    EXPECT_EQ(e, "");
}

TEST_P(Threads, SumsUnderDelayAndDisorder) {
  ThreadOptions options;
  options.delay_us = 300;
  options.seed = 5;
  for (const std::string& e : on_threads(GetParam(), options, [](Communicator& c) {
         for (int i = 0; i < 30; ++i) {
           double x = c.rank() + i;
           c.all_reduce(&x, 1, DType::kF64, Reduce::kSum);
           if (x != c.size() * (c.size() - 1) / 2 + i * c.size()) throw Error("a wrong sum");
         }
       }))
    EXPECT_EQ(e, "");
}
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::Values(1, 2, 3, 4));

TEST(Threads, MismatchedCallsAreNamedOnEveryRank) {
  const auto errors = on_threads(3, {}, [](Communicator& c) {
    std::vector<float> x(10);
    if (c.rank() == 1)
      c.broadcast(x.data(), 10, DType::kF32, 0);
    else
      c.all_reduce(x.data(), 10, DType::kF32, Reduce::kSum);
  });
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("all_reduce of 10 x fp32"), std::string::npos) << e;
    EXPECT_NE(e.find("broadcast of 10 x fp32"), std::string::npos) << e;
  }
}

TEST(Threads, DifferentCountsAreRefused) {
  for (const std::string& e : on_threads(2, {}, [](Communicator& c) {
         std::vector<float> x(10);
         c.all_reduce(x.data(), 5 + c.rank(), DType::kF32, Reduce::kSum);
       }))
    EXPECT_NE(e, "");
}

TEST(Threads, AFailureWakesAll) {
  ThreadOptions options;
  options.fail_rank = 2;
  options.fail_call = 3;
  const auto errors = on_threads(4, options, [](Communicator& c) {
    for (int i = 0; i < 10; ++i) c.barrier();
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("rank 2 fails at its call 3"), std::string::npos) << e;
}

TEST(Threads, ARankThatLeavesIsMissed) {
  const auto errors = on_threads(3, {}, [](Communicator& c) {
    c.barrier();
    if (c.rank() == 1) return;
    c.barrier();
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_NE(errors[0], "");
  EXPECT_NE(errors[2], "");
}

TEST(Threads, AbortWakesAReceiver) {
  const auto errors = on_threads(2, {}, [](Communicator& c) {
    float x = 0;
    if (c.rank() == 0) c.recv(&x, 1, DType::kF32, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c.abort("enough");
  });
  EXPECT_NE(errors[0].find("enough"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace molen::comm
