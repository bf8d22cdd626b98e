#include "comm/threads/threads.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/test_sanitized.h"
#include "comm/comm_suite.h"
#include "comm/reduce.h"
#include "comm/staged.h"
#include "comm/wire_suite.h"

namespace molen::comm {
namespace {

// Runs `body` on each rank; returns the text of each rank's error, "" if it threw none.
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

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, Suite) {
  for (const std::string& e : on_threads(GetParam(), {}, [](Communicator& c) {
         if (const std::string wrong = suite::Suite(c).run(); !wrong.empty()) throw Error(wrong);
       }))
    EXPECT_EQ(e, "");
}

TEST_P(Threads, SuiteUnderDelayAndDisorder) {
  ThreadOptions options;
  options.delay_us = 50;
  options.seed = 7;
  for (const std::string& e : on_threads(GetParam(), options, [](Communicator& c) {
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

// Without working delays the tests above would only see the arrival orders that threads happen to have.
TEST(ThreadsTrouble, DelaysTakeTheirTime) {
  const auto seconds = [](int delay_us) {
    ThreadOptions options;
    options.delay_us = delay_us;
    options.seed = 11;
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& e : on_threads(1, options, [](Communicator& c) {
           for (int i = 0; i < 16; ++i) c.barrier();
         }))
      EXPECT_EQ(e, "");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_GT(seconds(5'000), 0.016);  // 16 uniform delays of up to 5 ms each, 40 ms in the mean
}

TEST_P(Threads, WireBytesAreTheTextbooks) {
  ThreadOptions options;
  options.delay_us = 20;
  options.seed = 3;
  for (const std::string& e : on_threads(GetParam(), options, [](Communicator& c) {
         if (const std::string wrong = suite::WireSuite(c).run(); !wrong.empty()) throw Error(wrong);
       }))
    EXPECT_EQ(e, "");
}

// A stand-in for a device's memory. Instructions cannot access its addresses; copies and sums of the device reach the
// pages behind them through a second mapping.
class Guarded final : public Memory, public suite::Staging {
 public:
  static constexpr std::int64_t kParts = 8, kPart = 64 << 20;
  static constexpr std::size_t kBytes = kParts * kPart;
  Guarded() : file_(::memfd_create("guarded", 0)) {
    if (file_ < 0 || ::ftruncate(file_, kBytes) != 0) throw Error("no memory to stand in for a device's");
    there_ = map(PROT_NONE);
    pages_ = map(PROT_READ | PROT_WRITE);
  }
  ~Guarded() override {
    ::munmap(there_, kBytes);
    ::munmap(pages_, kBytes);
    ::close(file_);
  }
  // Frees the memory that this thread has taken.
  void begin() override { mine() = 0; }
  char* take(std::int64_t bytes) override {
    thread_local const std::int64_t part = parts_.fetch_add(1) % kParts;
    const std::int64_t at = mine();
    if ((mine() += (bytes + 63) / 64 * 64) > kPart) throw Error("the stand-in is full");
    return there_ + part * kPart + at;
  }
  bool holds(const void* data) const override {
    const auto* p = static_cast<const char*>(data);
    return p >= there_ && p < there_ + kBytes;
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (fails && holds(to) && holds(from)) throw Error("the device has failed");
    if (bytes <= 0 || to == from) throw Error("the device is asked to copy nothing");
    std::memmove(const_cast<char*>(reach(to)), reach(from), static_cast<std::size_t>(bytes));
  }
  void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op) override {
    std::vector<const void*> reached;
    for (const void* s : sources) reached.push_back(reach(s));
    comm::combine(const_cast<char*>(reach(out)), reached, count, dtype, op);
    ++combined;
  }
  void wait() override { ++waited; }
  std::atomic<int> combined = 0, waited = 0;
  std::atomic<bool> fails = false;  // copies between ranks

 private:
  char* map(int protection) const {
    void* p = ::mmap(nullptr, kBytes, protection, MAP_SHARED, file_, 0);
    if (p == MAP_FAILED) throw Error("no memory to stand in for a device's");
    return static_cast<char*>(p);
  }
  const char* reach(const void* data) const {
    const auto* p = static_cast<const char*>(data);
    return holds(p) ? pages_ + (p - there_) : p;
  }
  int file_;
  char *there_ = nullptr, *pages_ = nullptr;
  static std::int64_t& mine() {
    thread_local std::int64_t used = 0;
    return used;
  }
  inline static std::atomic<std::int64_t> parts_ = 0;
};

TEST_P(Threads, SuiteAndWireInTheMemoryOfADevice) {
  Guarded memory;
  ThreadOptions options;
  options.memory = &memory;
  for (const std::string& e : on_threads(GetParam(), options, [&](Communicator& c) {
         suite::Staged staged(c, memory);
         if (const std::string wrong = suite::Suite(staged).run(); !wrong.empty()) throw Error(wrong);
         if (const std::string wrong = suite::WireSuite(staged).run(); !wrong.empty()) throw Error(wrong);
         // Host buffers remain usable: flags that ranks agree on.
         double x = 1;
         c.all_reduce(&x, 1, DType::kF64, Reduce::kSum);
         if (x != c.size()) throw Error("a wrong sum on the host");
       }))
    EXPECT_EQ(e, "");
  EXPECT_GT(memory.combined, 0);
  EXPECT_GT(memory.waited, 0);
}

// When the device fails, neither a sender (which waits for a copy of its buffer) nor a peer in a collective waits for
// ever.
TEST(ThreadsMemory, ADeviceThatFailsEndsAll) {
  for (const bool message : {true, false}) {
    Guarded memory;
    memory.fails = true;
    ThreadOptions options;
    options.memory = &memory;
    const auto errors = on_threads(2, options, [&](Communicator& c) {
      char* buffer = memory.take(64);
      const std::vector<std::int64_t> counts{4, 4};
      if (!message)
        c.all_gather(buffer, memory.take(64), counts, DType::kF64);
      else if (c.rank() == 0)
        c.send(buffer, 8, DType::kF64, 1);
      else
        c.recv(buffer, 8, DType::kF64, 0);
    });
    for (const std::string& e : errors) EXPECT_NE(e.find("the device has failed"), std::string::npos) << e;
  }
}

TEST(ThreadsMemory, OneSumInTwoMemoriesIsRefused) {
  Guarded memory;
  ThreadOptions options;
  options.memory = &memory;
  const auto errors = on_threads(2, options, [&](Communicator& c) {
    double x = 1;
    c.all_reduce(c.rank() == 0 ? static_cast<void*>(&x) : memory.take(8), 1, DType::kF64, Reduce::kSum);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("memories of host and device"), std::string::npos) << e;
}

// The owner of the memory that another rank reads counts as the sender: the root, or the owner of a block, sends to
// each other rank.
TEST_P(Threads, WhoseMemoryIsReadHasSent) {
  const std::int64_t n = GetParam();
  for (const std::string& e : on_threads(GetParam(), {}, [n](Communicator& c) {
         std::vector<float> x(100), y(100);
         c.broadcast(x.data(), 10, DType::kF32, 0);
         EXPECT_EQ(c.traffic().wire_bytes, c.rank() == 0 ? 40 * (n - 1) : 0);
         std::vector<std::int64_t> counts;
         for (int r = 0; r < n; ++r) counts.push_back(r + 1);
         const std::int64_t before = *c.traffic().wire_bytes;
         c.all_gather(x.data(), y.data(), counts, DType::kF32);
         EXPECT_EQ(*c.traffic().wire_bytes - before, 4 * (c.rank() + 1) * (n - 1));
       }))
    EXPECT_EQ(e, "");
}
// Leaves out even numbers of ranks under a sanitizer: their suites take most of the time, and touch memory as the odd
// ones do.
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::ValuesIn(kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4}));

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

// Every kind of call counts.
TEST(Threads, AFailureIsInjectedAtAnyCall) {
  for (const int call : {0, 1, 2}) {
    ThreadOptions options;
    options.fail_rank = 1;
    options.fail_call = call;
    const auto errors = on_threads(2, options, [](Communicator& c) {
      double x = 1;
      if (c.rank() == 0) c.send(&x, 1, DType::kF64, 1);
      if (c.rank() == 1) c.recv(&x, 1, DType::kF64, 0);
      if (c.rank() == 1) c.send(&x, 1, DType::kF64, 0);
      if (c.rank() == 0) c.recv(&x, 1, DType::kF64, 1);
      c.barrier();
      c.barrier();
    });
    EXPECT_NE(errors[1].find(fmt::format("rank 1 fails at its call {}", call)), std::string::npos) << errors[1];
  }
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

void expect_on_all(const std::vector<std::string>& errors, const std::vector<std::string>& parts) {
  for (const std::string& e : errors)
    for (const std::string& part : parts) EXPECT_NE(e.find(part), std::string::npos) << e << " lacks " << part;
}

TEST(Threads, BlocksRootAndReductionAreCompared) {
  expect_on_all(
      on_threads(2, {},
                 [](Communicator& c) {
                   std::vector<float> x(4), y(4);
                   const std::vector<std::int64_t> k =
                       c.rank() == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{2, 2};
                   c.all_gather(x.data(), y.data(), k, DType::kF32);
                 }),
      {"rank 0: all_gather of 4 x fp32 in blocks of 1, 3", "rank 1: all_gather of 4 x fp32 in blocks of 2, 2"});
  expect_on_all(on_threads(2, {},
                           [](Communicator& c) {
                             float x = 0;
                             c.broadcast(&x, 1, DType::kF32, c.rank());
                           }),
                {"from rank 0", "from rank 1"});
  expect_on_all(on_threads(2, {},
                           [](Communicator& c) {
                             float x = 0;
                             c.all_reduce(&x, 1, DType::kF32, c.rank() == 0 ? Reduce::kSum : Reduce::kMax);
                           }),
                {"fp32, sum", "fp32, max"});
}

TEST(Threads, AllToAllCountsMustMatch) {
  for (const std::string& e : on_threads(2, {}, [](Communicator& c) {
         std::vector<float> x(9), y(9);
         const std::vector<std::int64_t> out{2, 2}, in{2, c.rank() == 0 ? 3 : 2};
         c.all_to_all(x.data(), out, y.data(), in, DType::kF32);
       }))
    EXPECT_NE(e.find("rank 1 sends 2 elements to rank 0, which expects 3"), std::string::npos) << e;
}

TEST(Threads, ACollectiveAgainstAMessageIsNoHang) {
  expect_on_all(on_threads(3, {},
                           [](Communicator& c) {
                             float x = 0;
                             if (c.rank() == 1)
                               c.recv(&x, 1, DType::kF32, 0);
                             else
                               c.all_reduce(&x, 1, DType::kF32, Reduce::kSum);
                           }),
                {"rank 0: all_reduce of 1 x fp32", "rank 1: receive of 1 x fp32 from rank 0"});
}

TEST(Threads, TwoSendersWaitingForEachOtherIsNoHang) {
  expect_on_all(on_threads(2, {},
                           [](Communicator& c) {
                             float x = 0, y = 0;
                             c.send(&x, 1, DType::kF32, 1 - c.rank());
                             c.recv(&y, 1, DType::kF32, 1 - c.rank());
                           }),
                {"rank 0: send of 1 x fp32 to rank 1", "rank 1: send of 1 x fp32 to rank 0"});
}

TEST(Threads, GroupsInDifferentOrderIsNoHang) {
  // Two groups of the same ranks: the classic deadlock of concurrent communicators.
  expect_on_all(on_threads(2, {},
                           [](Communicator& c) {
                             const auto a = c.split(0, 0), b = c.split(0, 0);
                             (c.rank() == 0 ? a : b)->barrier();
                           }),
                {"all ranks wait for each other", "rank 0: barrier", "rank 1: barrier"});
}

// While another thread of a rank may still call, the others wait. When that thread waits too, nobody can go on, and all
// throw.
TEST(Threads, SeveralCallersOfARankAreNoHangOnlyWhenAllWait) {
  for (const bool comes : {true, false}) {
    const auto texts = on_threads(2, {}, [comes](Communicator& c) {
      const auto a = c.split(0, 0), b = c.split(0, 0);
      c.add_callers(1);
      const std::jthread beside([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // meanwhile one thread of each rank waits
        try {
          if (comes) (c.rank() == 0 ? b : a)->barrier();
        } catch (const std::exception&) {  // the other thread tells
        }
        c.add_callers(-1);
      });
      (c.rank() == 0 ? a : b)->barrier();
    });
    if (comes)
      EXPECT_EQ(texts, (std::vector<std::string>{"", ""}));
    else
      expect_on_all(texts, {"all ranks wait for each other", "rank 0: barrier", "rank 1: barrier"});
  }
}

TEST(Threads, MessagesOfDifferentLengthAreRefused) {
  expect_on_all(on_threads(2, {},
                           [](Communicator& c) {
                             std::vector<float> x(5);
                             if (c.rank() == 0)
                               c.send(x.data(), 4, DType::kF32, 1);
                             else
                               c.recv(x.data(), 5, DType::kF32, 0);
                           }),
                {"rank 0 sends 4 x fp32 where rank 1 receives 5 x fp32"});
}

TEST(Threads, AFailureReachesOtherGroupsAndLaterCalls) {
  const auto errors = on_threads(4, {}, [](Communicator& c) {
    const auto half = c.split(c.rank() / 2, 0);
    if (c.rank() == 3) {
      c.abort("rank 3 is on fire");
      EXPECT_THROW(half->barrier(), Error);
    }
    for (int i = 0; i < 1000000; ++i) half->barrier();
  });
  expect_on_all(errors, {"rank 3 is on fire"});
}

TEST(Threads, AfterAMissingRankEveryCallFails) {
  std::atomic<int> thrown = 0;
  on_threads(3, {}, [&](Communicator& c) {
    if (c.rank() == 1) return;
    for (int i = 0; i < 5; ++i) try {
        c.barrier();
      } catch (const Error&) {
        ++thrown;
      }
  });
  EXPECT_EQ(thrown, 10);
}

TEST(Threads, BuffersAreNotReadAfterAFailure) {
  // Each rank frees its buffer as soon as it throws; the sanitizers see a late read.
  for (int at = 0; at < 40; ++at)
    on_threads(3, {}, [at](Communicator& c) {
      for (int i = 0;; ++i) {
        std::vector<float> x(50000, 1.0f);
        if (c.rank() == 2 && i == at % 5) {
          std::this_thread::sleep_for(std::chrono::microseconds(at * 5));
          c.abort("stop");
        }
        if (c.rank() < 2 && at % 2 == 1) {
          if (c.rank() == 0)
            c.send(x.data(), 50000, DType::kF32, 1);
          else
            c.recv(x.data(), 50000, DType::kF32, 0);
        } else if (at % 2 == 0) {
          c.all_reduce(x.data(), 50000, DType::kF32, Reduce::kSum);
        } else if (i > at % 5) {
          return;
        }
      }
    });
}

}  // namespace
}  // namespace molen::comm
