// The guardian of a session on a fake tree: ROOT, then the journal's path. For tests.
#include <filesystem>

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
      words[2], [&] { return molen::actuate::open_cpufreq(machine); }, options);
}
