// The guardian of a session on a fake tree: ROOT, then the journal's path. For tests.
#include <filesystem>
#include <utility>

#include "actuate/guardian.h"
#include "actuate/sysfs.h"

int main(int count, char** words) {
  if (count != 3) return 2;
  molen::energy::Machine machine;
  machine.sys = std::filesystem::path(words[1]) / "sys";
  machine.proc = std::filesystem::path(words[1]) / "proc";
  molen::actuate::GuardOptions options;
  options.tries = 2;
  options.between = molen::Seconds(0.05);
  return molen::actuate::guard(
      words[2],
      [&] {
        auto here = molen::actuate::open_cpufreq(machine);
        auto limits = molen::actuate::open_powercap_limits(machine);
        for (auto& limit : limits.actuators) here.actuators.push_back(std::move(limit));
        return here;
      },
      options);
}
