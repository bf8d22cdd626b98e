#include "train/require_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/available_memory.h"
#include "base/error.h"
#include "train/proof.h"
#include "train/verify_layouts.h"
#include "train/world.h"

namespace molen::train {
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

TEST(RequireMemory, TheLargestLayoutOfAProofIsNamed) {
  program::Setting s;
  s.global_batch = s.micro_batch = 4;
  s.sequence = 64;
  VerifyOptions options;
  options.compute = {DType::kF32, DType::kF64};
  const Launch launch = launch_threads(2);
  const auto refusal = [&](const arch::Architecture& model) {
    std::string text;
    const auto layouts = plan::layouts_of(model, s, 2, {"FULL_SHARD", "NO_SHARD"});
    try {
      run_ranks(launch, [&](comm::Communicator& world) {
        require_memory_of_layouts(model, s, layouts, options, launch.machine, world);
      });
    } catch (const UsageError& error) {
      text = error.what();
    }
    return text;
  };
  EXPECT_EQ(refusal(arch::preset("llama-tiny")), "");
  arch::Architecture wide = arch::preset("gpt-1t");  // has 128 layers
  wide.layers = 8;
  const std::string text = refusal(wide);  // 2 TB a rank
  EXPECT_EQ(text.rfind("the layout NO_SHARD", 0), 0u) << text;
  EXPECT_NE(text.find(" in fp64, with the tensors to compare, needs "), std::string::npos) << text;
}

// The outcome keeps 2 tensors of each parameter in fp64.
TEST(RequireMemory, OutcomesAreCounted) {
  const arch::Architecture a = arch::preset("llama-tiny");
  const OutcomeBytes bytes = outcome_bytes(a);
  EXPECT_EQ(bytes.made.value, 16 * arch::num_parameters(a));
  EXPECT_GT(bytes.making.value, bytes.made.value + 18 * arch::num_parameters(a));
}

}  // namespace
}  // namespace molen::train
