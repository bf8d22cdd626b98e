// Files of carbon intensities: refused with a UsageError that names the file, or read; a series that was read has
// ascending times and finite values, and its mean lies between its least and its greatest value.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "cluster/intensity.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  try {
    const auto s = cluster::parse_intensity({reinterpret_cast<const char*>(data), size}, "fuzz");
    require(s.values().size() >= 2 && s.end_s() > s.values().back().from_s);
    double least = s.values().front().kg_per_j, greatest = least;
    for (const auto& v : s.values()) {
      require(std::isfinite(v.from_s) && std::isfinite(v.kg_per_j) && v.kg_per_j >= 0.0);
      require(s.at(v.from_s) == v.kg_per_j);
      least = std::min(least, v.kg_per_j), greatest = std::max(greatest, v.kg_per_j);
    }
    const double mean = s.mean(s.begin_s(), s.end_s());
    require(mean >= least - 1e-9 * greatest && mean <= greatest + 1e-9 * greatest);
  } catch (const UsageError& error) {
    require(std::string(error.what()).starts_with("fuzz:"));
  }
  return 0;
}
