// The energy of a power that answers slowly: a controller of the board takes milliseconds to seconds for a request. A
// thread asks; a reading of the meter never waits for the answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "energy/meter.h"
#include "energy/power.h"

namespace molen::energy {

class PolledPower {
 public:
  // Returns watts now.
  using Poll = std::function<Result<double>()>;
  // `clock`: seconds, monotonic. Answers that are further apart than `longest_s` leave a gap.
  PolledPower(Poll poll, std::function<double()> clock, double longest_s)
      : poll_(std::move(poll)), clock_(std::move(clock)), integral_(longest_s), longest_s_(longest_s) {}
  ~PolledPower() { stop(); }
  PolledPower(const PolledPower&) = delete;
  PolledPower& operator=(const PolledPower&) = delete;

  // Asks once, and takes the answer as the power of the middle of the request.
  void poll();
  // Asks every `every_s` in a thread, until the end.
  void start(double every_s);
  // Returns the joules until now, with the last power since the last answer. A failure if the last request failed, or
  // if there has been no answer for `longest_s`.
  Result<Reading> read();

 private:
  void stop();

  Poll poll_;
  std::function<double()> clock_;
  std::mutex mutex_;
  PowerIntegral integral_;
  double longest_s_, watts_ = 0.0, answered_s_ = 0.0, shown_j_ = 0.0;
  Reading reading_;
  std::string failure_ = "the controller has not answered yet";
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace molen::energy
