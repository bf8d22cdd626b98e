// Cluster descriptions: refused with a UsageError that names the file, or read; what was read is a cluster whose tiers
// grow to all devices and whose figures are finite numbers with a source. The
// [site] of a run is read likewise.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cluster/site.h"

namespace {

using molen::cluster::Figure;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_figure(const Figure& figure) {
  require(std::isfinite(figure.value) && figure.value >= 0.0);
  require(figure.spread >= 0.0 && figure.spread <= 1.0 && !figure.source.empty());
}

void read_site(std::string_view text) {
  using namespace molen;
  try {
    const auto site = cluster::parse_site(text, "fuzz");
    check_figure(site.pue), check_figure(site.intensity);
    if (site.water) check_figure(*site.water);
    if (site.price) check_figure(*site.price);
  } catch (const UsageError& error) {
    require(std::string(error.what()).starts_with("fuzz:"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  read_site({reinterpret_cast<const char*>(data), size});
  try {
    const auto c = cluster::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    require(c.devices() >= 2 && !c.tiers.empty() && c.tiers.back().devices == c.devices());
    int before = 1;
    for (const auto& tier : c.tiers) {
      require(tier.devices > before && tier.devices % before == 0);
      require(&c.tier_of(tier.devices) == &tier && &c.tier_of(before + 1) == &tier);
      before = tier.devices;
      for (const Figure* f : {&tier.bandwidth, &tier.efficiency, &tier.latency}) check_figure(*f);
    }
    const auto& d = c.device;
    for (const Figure* f : {&d.peak_fp32, &d.peak_16bit, &d.peak_fp8, &d.memory, &d.bandwidth, &d.gemm_efficiency,
                            &d.attention_efficiency, &d.memory_efficiency, &d.launch, &d.idle_power, &d.peak_power,
                            &c.node.host_power, &c.node.host_memory, &c.node.host_bandwidth, &c.node.host_link,
                            &c.site.pue, &c.site.intensity, &c.site.water, &c.site.price})
      check_figure(*f);
    for (const auto* f : {&c.site.device_hour, &c.clocks.low, &c.clocks.high, &c.clocks.step, &c.clocks.knee,
                          &c.clocks.exponent, &c.clocks.share})
      if (*f) check_figure(**f);
  } catch (const UsageError& error) {
    require(std::string(error.what()).starts_with("fuzz:"));
  }
  return 0;
}
