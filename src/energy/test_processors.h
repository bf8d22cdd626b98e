// A machine of four processors whose times the test sets, and a meter.
#pragma once

#include <algorithm>
#include <vector>

#include "energy/meter.h"
#include "energy/test_machine.h"

namespace molen::energy {

class FakeProcessors {
 public:
  FakeProcessors() {
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Test 1\n");
    allow("0-3");
    for (double& all : all_) all = 1000.0;
    write();
  }
  void allow(const std::string& list) const {
    machine.write("proc/self/status", "Name:\tmolen\nCpus_allowed_list:\t" + list + "\n");
  }

  // Lets time pass in which each processor is busy for this share. `kernel_s`: the time that the kernel counts, where
  // that is another one.
  void pass(double seconds, double busy, double kernel_s = 0.0) { pass(seconds, {busy, busy, busy, busy}, kernel_s); }
  void pass(double seconds, const std::vector<double>& busy, double kernel_s = 0.0) {
    machine.time += seconds;
    const double counted = kernel_s > 0.0 ? kernel_s : seconds;
    for (std::size_t i = 0; i < 4; ++i) busy_[i] += counted * busy[i], all_[i] += counted;
    write();
  }

  // Lets time pass until `time_s` of a clock that the test keeps itself.
  void pass_to(double time_s, double busy) {
    if (const double seconds = time_s - passed_s_; seconds > 0.0) pass(0.0, busy, seconds);
    passed_s_ = std::max(passed_s_, time_s);
  }

  FakeMachine machine;

 private:
  // Times are in ticks of 10 ms, and half of the idle time is spent in waits for storage. Fractions of ticks keep the
  // test's sums exact.
  void write() const {
    std::string text = "cpu  1 2 3 4 5 6 7 8 9 10\n";
    for (std::size_t i = 0; i < 4; ++i) {
      const double idle = 50.0 * (all_[i] - busy_[i]);
      text += fmt::format("cpu{} {} 0 {} {} {} 0 0 0 0 0\n", i, 75.0 * busy_[i], 25.0 * busy_[i], idle, idle);
    }
    machine.write("proc/stat", text + "intr 12 0 3\n");
  }
  double busy_[4] = {}, all_[4] = {}, passed_s_ = 0.0;
};

// A meter whose joules the test sets.
class SteadyMeter : public Meter {
 public:
  explicit SteadyMeter(std::string scope, Source source = Source::kCounter)
      : Meter({"test", std::move(scope), source, "made up", Seconds(0), true}) {}
  Result<Reading> read() override { return Reading{joules, 0, 0}; }
  Joules joules{0};
};

}  // namespace molen::energy
