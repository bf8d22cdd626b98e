#include "collect/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/clock.h"

namespace molen::collect {
namespace {

// A descriptor that is readable once it is told.
struct Told {
  Told() { EXPECT_EQ(::pipe(ends), 0); }
  ~Told() {
    ::close(ends[0]);
    if (!told) tell();
  }
  void tell() { ::close(ends[1]), told = true; }
  int ends[2]{};
  bool told = false;
};

void print_word(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

TEST(WatchdogDeathTest, EndsAProcessThatHangs) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Told stop;
        const Watchdog watchdog(stop.ends[0], 0.2, print_word);
        stop.tell();
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(1), "has not ended 0.2 s after it was told to, so a meter hangs");
}

TEST(Watchdog, LetsOthersBe) {
  const double start_s = now().value;
  {
    Told stop;
    const Watchdog watchdog(stop.ends[0], 0.05, print_word);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // nobody has told it to stop
  }
  {
    Told stop;
    const Watchdog watchdog(stop.ends[0], 60, print_word);
    stop.tell();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it ends in time
  }
  EXPECT_LT(now().value - start_s, 30) << "its end waits for nothing";
}

}  // namespace
}  // namespace molen::collect
