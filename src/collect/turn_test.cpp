#include "collect/turn.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace molen::collect {
namespace {

class Turns : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("molen_turn_{}", ::getpid());
  const fs::path file_ = folder_ / "lock";
};

TEST_F(Turns, OneHasItAtATime) {
  Turn first(file_), second(file_);
  ASSERT_TRUE(first.wait(-1));
  EXPECT_TRUE(second.taken());
  std::atomic<bool> got{false};
  std::thread waits([&] {
    EXPECT_TRUE(second.wait(-1));
    got = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(got) << "the first one still has it";
  first.give_up();
  waits.join();
  EXPECT_TRUE(got);
  EXPECT_TRUE(first.taken());
  second.give_up();
  EXPECT_FALSE(first.taken());
  EXPECT_FALSE(second.taken()) << "whoever looks leaves it free";
}

// The kernel takes it from a process that dies.
TEST_F(Turns, OfOneThatIsGoneIsFree) {
  Turn next(file_);
  {
    Turn gone(file_);
    ASSERT_TRUE(gone.wait(-1));
    ASSERT_TRUE(next.taken());
  }
  EXPECT_TRUE(next.wait(-1));
}

TEST_F(Turns, AStopEndsTheWait) {
  Turn first(file_), second(file_);
  ASSERT_TRUE(first.wait(-1));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread stops([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::close(ends[1]);
  });
  EXPECT_FALSE(second.wait(ends[0]));
  stops.join();
  ::close(ends[0]);
  Turn third(file_);
  first.give_up();
  EXPECT_TRUE(third.wait(-1)) << "the one that stopped has not taken it";
}

TEST_F(Turns, WhoWaitsLearnsWhoHasIt) {
  Turn first(file_, "pid=1 job=5\x1b"), second(file_, "pid=2");
  ASSERT_TRUE(first.wait(-1));
  std::vector<std::string> said;
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    first.give_up();
  });
  EXPECT_TRUE(second.wait(-1, 0.05, [&](const std::string& holder) { said.push_back(holder); }));
  ends.join();
  EXPECT_EQ(said, (std::vector<std::string>{"pid=1 job=5 "})) << "once, as a text";
  EXPECT_EQ(second.holder(), "pid=2");
  second.give_up();
  Turn third(file_);
  EXPECT_TRUE(third.wait(-1, 0, [](const std::string&) { ADD_FAILURE() << "it need not wait"; }));
  EXPECT_EQ(third.holder(), "");
}

// It is told who has it while that one still has it, and not when the wait is over.
TEST_F(Turns, WhoWaitsIsToldInTime) {
  Turn first(file_, "first"), second(file_, "second");
  ASSERT_TRUE(first.wait(-1));
  std::atomic<bool> told{false}, over{false};
  std::thread ends([&] {
    for (int i = 0; i < 1000 && !told; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    over = true;
    first.give_up();
  });
  EXPECT_TRUE(second.wait(-1, 0.02, [&](const std::string&) {
    EXPECT_FALSE(over);
    told = true;
  }));
  ends.join();
  EXPECT_TRUE(told);
}

TEST_F(Turns, FileThatCannotBe) {
  EXPECT_THROW(Turn(folder_ / "none/lock"), Error);
  std::ofstream(folder_ / "other") << "kept";
  fs::create_symlink(folder_ / "other", folder_ / "link");
  EXPECT_THROW(Turn(folder_ / "link"), Error) << "a link may point anywhere";
}

}  // namespace
}  // namespace molen::collect
