#include "store/lease.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/test_filesystem.h"

namespace molen::store {
namespace {

class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("molen_lease_test_{}", ::getpid());
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  // An owner on another machine: this machine cannot see whether its process lives.
  static LeaseOptions elsewhere(const std::string& host, double period_s) {
    LeaseOptions options;
    options.period_s = period_s;
    options.owner.host = host;
    options.owner.boot = "another";
    options.waiting = nullptr;
    return options;
  }

  // Makes leases of a process that died without releasing them. Without options that process itself is the owner.
  static void held_by_the_dead(const std::vector<fs::path>& directories, const std::optional<LeaseOptions>& options) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const fs::path& directory : directories)
        new Lease(directory, options.value_or(LeaseOptions{}));  // never destroyed: the destructor would release it
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
  }

  fs::path directory_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(LeaseTest, OneOwnerAtATimeAndTheLoserIsToldWho) {
  const Lease mine(directory_, {});
  mine.require();
  EXPECT_EQ(lease_owner(directory_), Owner::self().text());
  try {
    const Lease second(directory_, {});
    FAIL();
  } catch (const LeaseHeld& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("{}: process {} on {} writes here, and only one may; wait for it to end, or give this run "
                          "another name (run.name)",
                          directory_.string(), ::getpid(), Owner::self().host));
  }
}

TEST_F(LeaseTest, AReleasedOneIsTakenAtOnceWithAHigherToken) {
  std::int64_t token = 0;
  { token = Lease(directory_, {}).token(); }
  EXPECT_EQ(lease_owner(directory_), "");
  const auto begin = std::chrono::steady_clock::now();
  const Lease next(directory_, elsewhere("node2", 60));
  EXPECT_GT(next.token(), token);
  EXPECT_LT(seconds_since(begin), 5);
}

// Nobody has to wait for a killed process of this host.
TEST_F(LeaseTest, ADeadProcessOfThisHostIsKnownAtOnce) {
  held_by_the_dead({directory_}, std::nullopt);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Lease(directory_, {}).token(), 2);
  EXPECT_LT(seconds_since(begin), 5);
}

// The system reuses process numbers, so a process with the owner's number may be another one.
TEST_F(LeaseTest, ANumberThatIsGivenAgainIsNotItsOwner) {
  LeaseOptions before;
  before.owner.process_start -= 1;
  held_by_the_dead({directory_}, before);
  EXPECT_EQ(lease_owner(directory_), "") << "this process has that number, and began at another time";
}

// A process can be looked up only when host, boot and process namespace are the same.
TEST_F(LeaseTest, AProcessMeansSomethingInItsPlaceAlone) {
  for (const auto field : {&Owner::host, &Owner::boot, &Owner::pid_namespace}) {
    const fs::path directory = directory_ / std::to_string(field == &Owner::host ? 1 : field == &Owner::boot ? 2 : 3);
    LeaseOptions options;
    options.owner.pid = 0;  // no process has number 0
    held_by_the_dead({directory}, options);
    EXPECT_EQ(lease_owner(directory), "");
    options.owner.*field = "another";
    held_by_the_dead({directory / "elsewhere"}, options);
    EXPECT_EQ(lease_owner(directory / "elsewhere"), options.owner.text());
  }
}

TEST_F(LeaseTest, ADeadOwnerElsewhereIsTakenOverInTime) {
  held_by_the_dead({directory_}, elsewhere("node1", 0.4));
  std::string told;
  LeaseOptions options = elsewhere("node2", 0.4);
  options.waiting = [&](const std::string& text) { told = text; };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Lease(directory_, options).token(), 2);
  EXPECT_GE(seconds_since(begin), 0.4);
  EXPECT_LT(seconds_since(begin), 3);
  EXPECT_EQ(told, fmt::format("{}: {} was writing here; taking over if it shows no life for 0.4 s", directory_.string(),
                              elsewhere("node1", 0.4).owner.text()));
}

TEST_F(LeaseTest, ALivingOwnerElsewhereIsSeenByItsRenewals) {
  const Lease mine(directory_, elsewhere("node1", 0.4));
  EXPECT_THROW(Lease(directory_, elsewhere("node2", 0.4)), LeaseHeld);
  mine.require();
}

// When a dead owner held two directories, a process that waited for one of its leases need not wait for the other.
TEST_F(LeaseTest, ADeadOwnerIsWaitedForOnce) {
  held_by_the_dead({directory_ / "a", directory_ / "b"}, elsewhere("node1", 0.6));
  const Lease first(directory_ / "a", elsewhere("node2", 60));
  ASSERT_TRUE(first.outlived());
  EXPECT_EQ(first.outlived()->host, "node1");
  LeaseOptions options = elsewhere("node2", 60);
  options.dead = first.outlived();
  options.waiting = [](const std::string& text) { ADD_FAILURE() << text; };
  EXPECT_EQ(Lease(directory_ / "b", options).token(), 2);
  EXPECT_FALSE(Lease(directory_ / "b", options).outlived()) << "that one was released";
}

// The owner chooses its renewal period, so a process that waits uses that period and not its own.
TEST_F(LeaseTest, TheOwnersPeriodDecidesWhenItIsDead) {
  {
    const Lease slow(directory_, elsewhere("node1", 3));
    EXPECT_THROW(Lease(directory_, elsewhere("node2", 0.2)), LeaseHeld);
    slow.require();
  }
  held_by_the_dead({directory_}, elsewhere("node1", 0.4));
  const auto begin = std::chrono::steady_clock::now();
  const Lease next(directory_, elsewhere("node2", 60));
  EXPECT_LT(seconds_since(begin), 5);
}

// An owner that was away for too long learns before its next write that it has lost the lease.
TEST_F(LeaseTest, ALateOwnerIsFenced) {
  const Lease late(directory_, elsewhere("node1", 0.4));
  const auto refusal = [&]() -> std::string {
    try {
      late.require();
      return "";
    } catch (const LeaseHeld& error) {
      return error.what();
    }
  };
  const std::string end =
      " has taken over, because this process showed no life for 0.4 s; nothing more is written here";
  write_file_atomic(directory_ / "lease-000000002.json", "{}");
  EXPECT_EQ(refusal(), directory_.string() + ": another process" + end);
  write_file_atomic(directory_ / "lease-000000003.json",
                    R"({"host":"node2","boot":"b","pid_namespace":"n","pid":12,"process_start":34,"job":"Slurm job 9",
                        "released":false})");
  EXPECT_EQ(refusal(), directory_.string() + ": process 12 on node2 (Slurm job 9)" + end);
}

TEST_F(LeaseTest, ALeaseFileCutShortByACrashIsTakenOver) {
  fs::create_directories(directory_);
  write_file_atomic(directory_ / "lease-000000007.json", "{\"tok");
  EXPECT_EQ(Lease(directory_, elsewhere("node2", 0.2)).token(), 8);
}

// A process that dies while it writes its lease leaves a temporary file, which only another owner can remove.
TEST_F(LeaseTest, WhatAnEarlierOwnerWasWritingIsRemoved) {
  fs::create_directories(directory_);
  for (const char* name : {"lease-000000007.json.part-0123456789abcdef", "run.json.part-0123456789abcdef"})
    write_file_atomic(directory_ / name, "x");
  const Lease lease(directory_, {});
  EXPECT_EQ(lease.token(), 1);
  EXPECT_FALSE(fs::exists(directory_ / "lease-000000007.json.part-0123456789abcdef"));
  EXPECT_TRUE(fs::exists(directory_ / "run.json.part-0123456789abcdef"))
      << "the owner's own file, or another program's";
}

TEST_F(LeaseTest, WorksWithoutSecondNames) {
  class NoLinks : public FileSystem {
    int link(const fs::path&, const fs::path&) override { return -EPERM; }
  } without;
  const FileSystemOverride instead(without);
  const Lease mine(directory_, {});
  EXPECT_THROW(Lease(directory_, {}), LeaseHeld);
}

// Two jobs start on one directory at slightly different times, in 200 runs. One gets the lease; the other is refused or
// gets it after the first has ended. They never hold it together.
TEST_F(LeaseTest, TwoHundredRandomInterleavings) {
  std::atomic<int> next = 0, in_turn = 0, refused = 0;
  const auto interleave = [&](int run) {
    std::mt19937 random(static_cast<unsigned>(run));
    const fs::path directory = directory_ / std::to_string(run);
    std::atomic<int> holders = 0, most = 0, losers = 0;
    const auto job = [&](const std::string& host, int delay_us, int work_us) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      try {
        const Lease lease(directory, elsewhere(host, 1.0));
        most = std::max(most.load(), ++holders);
        std::this_thread::sleep_for(std::chrono::microseconds(work_us));
        lease.require();
        --holders;
      } catch (const LeaseHeld&) {
        ++losers;
      }
    };
    const auto pause = [&](unsigned most_us) { return static_cast<int>(random() % most_us); };
    std::jthread a(job, "a", pause(3000), pause(500'000)), b(job, "b", pause(3000), pause(500'000));
    a.join(), b.join();
    EXPECT_EQ(most, 1) << "run " << run;
    EXPECT_LE(losers, 1) << "run " << run;
    refused += losers;
    in_turn += losers == 0;
    EXPECT_EQ(list_directory(directory).size(), 1u) << "run " << run << ": the last lease alone is left";
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 25; ++t)
      threads.emplace_back([&] {
        for (int run; (run = next++) < 200;) interleave(run);
      });
  }
  fmt::print("200 runs: {} times the second was refused, {} times it came after the first\n", refused.load(),
             in_turn.load());
  EXPECT_GT(refused, 20);
  EXPECT_GT(in_turn, 20);
}

}  // namespace
}  // namespace molen::store
