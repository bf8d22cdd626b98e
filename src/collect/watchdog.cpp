#include "collect/watchdog.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace molen::collect {
namespace {

// Returns whether the descriptor is readable before the clock shows `until_s`.
bool is_readable_before(int descriptor, double until_s) {
  for (;;) {
    pollfd polled{descriptor, POLLIN, 0};
    const double left_ms = std::clamp(std::ceil((until_s - now().value) * 1000.0), 0.0, 60'000.0);
    const int found = ::poll(&polled, 1, static_cast<int>(left_ms));
    if (found > 0) return true;
    if (found == 0 && now().value >= until_s) return false;
  }
}

}  // namespace

Watchdog::Watchdog(int stop, double limit_s, std::function<void(const std::string&)> say)
    : over_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (over_.get() < 0) throw Error("a watchdog: {}", std::strerror(errno));
  try {
    thread_ = std::thread([stop, over = over_.get(), limit_s, say = std::move(say)] {
      pollfd either[2]{{over, POLLIN, 0}, {stop, POLLIN, 0}};
      while (::poll(either, 2, -1) <= 0) {
      }
      if (either[0].revents != 0 || is_readable_before(over, now().value + limit_s)) return;
      say(
          fmt::format("has not ended {:g} s after it was told to, so a meter hangs: it ends now, and what it has not "
                      "written is lost",
                      limit_s));
      ::_exit(1);
    });
  } catch (const std::system_error& error) {
    throw Error("a watchdog: {}", error.what());
  }
}

Watchdog::~Watchdog() {
  ::eventfd_write(over_.get(), 1);
  thread_.join();
}

}  // namespace molen::collect
