// Recordings of energy: refused with a UsageError, or they give meters whose joules never decrease.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "energy/replay.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  double now = 5.0;
  energy::Machine machine;
  machine.clock = [&] { return now; };
  try {
    const auto found = energy::parse_replay(machine, std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    if (found.meters.empty()) std::abort();
    std::vector<double> last(found.meters.size(), 0.0);
    for (int i = 0; i < 16; ++i, now += 0.3 * i) {
      for (std::size_t m = 0; m < last.size(); ++m) {
        const auto reading = found.meters[m]->read();
        if (!reading) continue;
        const double joules = reading.value().total.value;
        // Interpolation rounds: joules may decrease by a few units in the last place of the larger value.
        if (!std::isfinite(joules) || joules < last[m] * (1.0 - 1e-15)) std::abort();
        last[m] = joules;
      }
    }
  } catch (const UsageError&) {
  }
  return 0;
}
