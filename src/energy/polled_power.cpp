#include "energy/polled_power.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace molen::energy {

void PolledPower::poll() {
  const double asked_s = clock_();
  const Result<double> watts = poll_();
  const double time_s = 0.5 * (asked_s + clock_());
  const std::lock_guard lock(mutex_);
  failure_ = watts.reason();
  if (!watts) return;
  reading_ = integral_.add(watts.value(), time_s);
  watts_ = watts.value(), answered_s_ = time_s;
}

void PolledPower::start(double every_s) {
  thread_ = std::thread([this, every_s] {
    ::pthread_setname_np(::pthread_self(), "power");
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::duration<double>(every_s), [this] { return stopping_; })) {
      lock.unlock();
      poll();
      lock.lock();
    }
  });
}

void PolledPower::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<Reading> PolledPower::read() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return Failure{failure_};
  const double silence_s = clock_() - answered_s_;
  if (silence_s > longest_s_) return Failure{fmt::format("the controller has not answered for {:.0f} s", silence_s)};
  Reading now = reading_;
  // The power since the last answer may prove to have been less than is taken here; a total never falls.
  shown_j_ = std::max(shown_j_, now.total.value + watts_ * std::max(0.0, silence_s));
  now.total = Joules(shown_j_);
  return now;
}

}  // namespace molen::energy
