#include "launch/require_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/available_memory.h"
#include "base/error.h"
#include "launch/world.h"

namespace molen::launch {
namespace {

// Returns the distinct texts in which the ranks' requests end; "" for a request that is granted.
std::set<std::string> ends(const Launch& launch, const std::function<MemoryRequest(int)>& request) {
  std::mutex mutex;
  std::set<std::string> texts;
  run_ranks(launch, [&](comm::Communicator& world) {
    std::string text;
    try {
      require_memory(request(world.rank()), launch.machine, world);
    } catch (const UsageError& error) {
      text = error.what();
    }
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  return texts;
}

constexpr std::int64_t kHuge = std::int64_t{1} << 50;

TEST(RequireMemory, WhatIsThereIsNotRefused) {
  EXPECT_EQ(ends(launch_threads(3),
                 [](int) {
                   return MemoryRequest{{Bytes(1), Bytes(1)}, "it", 1, {}};
                 }),
            std::set<std::string>{""});
}

// One stage of a pipeline may need more than a rank's share of the host; the sum over all stages counts.
TEST(RequireMemory, RanksOfAHostHaveItTogether) {
  const std::int64_t there = available_memory().bytes.value;
  const auto one_takes = [&](double part) {
    return ends(launch_threads(4), [&](int rank) {
      const auto bytes = static_cast<std::int64_t>(static_cast<double>(there) * part);
      return MemoryRequest{{Bytes(rank == 2 ? bytes : 0), Bytes(0)}, "it", 1, {}};
    });
  };
  EXPECT_EQ(one_takes(0.5), std::set<std::string>{""});
  const auto refused = one_takes(2);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused.begin()->rfind("it needs ", 0), 0u) << *refused.begin();
  EXPECT_NE(refused.begin()->find(" of memory where a rank has "), std::string::npos) << *refused.begin();
}

TEST(RequireMemory, OneRankLooksForWhatFits) {
  std::atomic<int> asked = 0;
  const auto refused = ends(launch_threads(4), [&](int) {
    return MemoryRequest{{Bytes(0), Bytes(kHuge)}, "it", 1, [&](const plan::MemoryRoom& room) {
                           ++asked;
                           EXPECT_GT(room.host.value, 0);
                           EXPECT_FALSE(room.device);
                           return std::string("; try another");
                         }};
  });
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(refused.begin()->ends_with("; try another")) << *refused.begin();
}

// Ranks of different hosts cannot lend each other memory: the message names the rank that has too little.
TEST(RequireMemory, ARankOfAnotherHostIsNamed) {
  Launch launch = launch_threads(4);
  launch.machine.local_ranks = 1;
  const auto refused = ends(launch, [&](int rank) {
    return MemoryRequest{{Bytes(rank == 2 ? kHuge : 0), Bytes(0)}, "it", 1, {}};
  });
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused.begin()->rfind("rank 2: it needs ", 0), 0u) << *refused.begin();
}

}  // namespace
}  // namespace molen::launch
