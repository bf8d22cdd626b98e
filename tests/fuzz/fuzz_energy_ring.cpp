// The last readings of meters: refused with a UsageError, or joules that are no less than 0. A seed is stored short:
// zeros fill it up to the size that its head names.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "store/energy_ring.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 64) {
    std::uint32_t scopes = 0;
    std::memcpy(&scopes, bytes.data() + 12, sizeof scopes);
    const std::size_t whole = 4096 + (40 + 8 * std::size_t{scopes} + 63) / 64 * 64 * store::EnergyRing::kReadings;
    if (scopes <= 128 && bytes.size() < whole) bytes.resize(whole);
  }
  try {
    const store::HostReadings found = store::parse_energy_ring(bytes, "fuzz");
    if (found.last_j.size() != found.head.scopes.size() || !(found.total_j >= 0.0) || std::isinf(found.total_j) ||
        !(found.seconds >= 0.0) || std::isinf(found.seconds))
      std::abort();
    for (const double j : found.last_j)
      if (j < 0.0 || std::isinf(j)) std::abort();
    for (const auto& [scope, j] : found.head.spent_before.by_scope)
      if (!(j >= 0.0) || !std::isfinite(j) || !valid_utf8(scope)) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
