#include "energy/polled_power.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace molen::energy {

PolledPower::PolledPower(Poll poll, std::function<double()> clock, double watts, double longest_s)
    : poll_(std::move(poll)),
      clock_(std::move(clock)),
      watts_(watts),
      longest_s_(longest_s),
      answered_s_(clock_()),
      counted_s_(answered_s_) {}

void PolledPower::count_until(double time_s) {
  const double end_s = std::min(time_s, answered_s_ + longest_s_);
  if (end_s > counted_s_) reading_.total += Joules(watts_ * (end_s - counted_s_)), counted_s_ = end_s;
  if (time_s <= end_s) return;
  if (!silent_) ++reading_.gaps;
  silent_ = true;
}

void PolledPower::poll() {
  const Result<double> watts = poll_();
  const std::lock_guard lock(mutex_);
  failure_ = watts.reason();
  if (!watts) return;
  const double now_s = clock_();
  count_until(now_s);
  watts_ = watts.value();
  answered_s_ = counted_s_ = now_s;
  silent_ = false;
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
  const double now_s = clock_();
  count_until(now_s);
  if (silent_)
    return Failure{fmt::format("the controller has not answered for {:.0f} s{}{}", now_s - answered_s_,
                               failure_.empty() ? "" : ": ", failure_)};
  return reading_;
}

}  // namespace molen::energy
