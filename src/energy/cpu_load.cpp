#include "energy/cpu_load.h"

#include <array>

namespace molen::energy {
namespace {

// 32 KiB of floats, about a first-level cache, as products of matrices keep their tiles there.
constexpr std::size_t kNumbers = 8192;

void multiply_until(const std::stop_token& stop) {
  std::array<float, kNumbers> x{};
  x.fill(0.5F);
  volatile float sink = 0.0F;  // so that the compiler keeps the work
  while (!stop.stop_requested()) {
    // 0.5 is a fixed point of the map, so no number becomes so small that it slows the work down.
    for (int pass = 0; pass < 64; ++pass)
      for (float& v : x) v = v * 0.75F + 0.125F;
    sink = sink + x[kNumbers / 2];
  }
}

}  // namespace

void CpuLoad::run_on(int threads) {
  threads_.clear();  // requests the stop of each, and joins it
  for (int i = 0; i < threads; ++i) threads_.emplace_back([](const std::stop_token& stop) { multiply_until(stop); });
}

}  // namespace molen::energy
