// Calibrations: either refused with a UsageError, or unchanged after being written and read again; a request for more
// ranks gives costs or a reason.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "sim/calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  try {
    const auto c = sim::parse_calibration(parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"), "fuzz");
    const Json written = sim::to_json(c);
    if (sim::to_json(sim::parse_calibration(parse_json(written.dump(), "again"), "again")) != written) std::abort();
    for (const auto& entry : c.entries) {
      if (!c.has(entry.conditions) || !c.find(entry.conditions)) std::abort();
      auto more = entry.conditions;
      ++more.ranks;
      const auto costs = c.find(more);
      if (!costs && costs.reason().empty()) std::abort();
    }
  } catch (const UsageError&) {
  }
  return 0;
}
