// The energy of a power that answers slowly: a controller of the board takes milliseconds to seconds for a request. A
// thread asks; a reading of the meter never waits for the answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "energy/meter.h"

namespace molen::energy {

class PolledPower {
 public:
  // Returns watts now.
  using Poll = std::function<Result<double>()>;
  // `clock`: seconds, monotonic. `watts`: now. Each power counts until the next answer, but for at most `longest_s`:
  // what comes after is a gap.
  PolledPower(Poll poll, std::function<double()> clock, double watts, double longest_s);
  ~PolledPower() { stop(); }
  PolledPower(const PolledPower&) = delete;
  PolledPower& operator=(const PolledPower&) = delete;

  // Asks once, and takes the answer as the power from now on.
  void poll();
  // Asks every `every_s` in a thread, until the end.
  void start(double every_s);
  // Returns the joules until now. A failure, with the controller's reason, once there has been no answer for
  // `longest_s`: until then the last power counts, because controllers are often busy.
  Result<Reading> read();

 private:
  void count_until(double time_s);
  void stop();

  Poll poll_;
  std::function<double()> clock_;
  std::mutex mutex_;
  double watts_, longest_s_, answered_s_, counted_s_;  // counted_s_: the time until which the reading counts
  Reading reading_;
  std::string failure_;  // of the last request
  bool silent_ = false;  // for longer than longest_s_
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

// A meter of such a power. `watts` is the first answer; a thread asks every `ask_every` after it.
class PolledMeter : public Meter {
 public:
  PolledMeter(MeterInfo info, PolledPower::Poll poll, std::function<double()> clock, double watts, double longest_s,
              Seconds ask_every)
      : Meter(std::move(info)), power_(std::move(poll), std::move(clock), watts, longest_s) {
    power_.start(ask_every.value);
  }

  Result<Reading> read() override { return power_.read(); }

 private:
  PolledPower power_;
};

}  // namespace molen::energy
