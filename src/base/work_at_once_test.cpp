#include "base/work_at_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"

namespace molen {
namespace {

TEST(EachAtOnce, CallsEachOnceInOrder) {
  std::vector<std::size_t> called;
  each_at_once(5, 1, [&](std::size_t i) { called.push_back(i); });
  EXPECT_EQ(called, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  each_at_once(0, 3, [&](std::size_t) { ADD_FAILURE() << "there is nothing to do"; });
  std::mutex mutex;
  std::multiset<std::size_t> all;
  each_at_once(100, 4, [&](std::size_t i) {
    const std::lock_guard lock(mutex);
    all.insert(i);
  });
  EXPECT_EQ(all.size(), 100U);
  EXPECT_EQ(std::set<std::size_t>(all.begin(), all.end()).size(), 100U);
}

// Three pieces wait for each other, so they end only if all three are under way; a fourth is not.
TEST(EachAtOnce, AsManyAtATimeAsSaid) {
  std::mutex mutex;
  std::condition_variable arrived;
  int begun = 0, under_way = 0, most = 0;
  each_at_once(6, 3, [&](std::size_t) {
    std::unique_lock lock(mutex);
    most = std::max(most, ++under_way);
    const int last_of_three = (begun++ / 3 + 1) * 3;
    arrived.notify_all();
    arrived.wait(lock, [&] { return begun >= last_of_three; });
    --under_way;
  });
  EXPECT_EQ(most, 3);
}

TEST(EachAtOnce, AnExceptionEndsIt) {
  for (const int at_once : {1, 4}) {
    std::atomic<int> called = 0;
    try {
      each_at_once(1000000, at_once, [&](std::size_t i) {
        ++called;
        if (i == 2) throw Error("the third");
      });
      ADD_FAILURE() << "no exception";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the third");
    }
    if (at_once == 1) EXPECT_EQ(called, 3);
    EXPECT_LT(called, 1000000);
  }
}

// The second piece fails only after the third has.
TEST(EachAtOnce, TheExceptionIsThatOfTheLowest) {
  std::atomic<bool> third = false;
  try {
    each_at_once(3, 3, [&](std::size_t i) {
      if (i == 2) {
        third = true;
        throw Error("the third");
      }
      while (!third) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (i == 1) throw Error("the second");
    });
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the second");
  }
}

}  // namespace
}  // namespace molen
