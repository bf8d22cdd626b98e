#include "sim/described_energy.h"

#include <algorithm>
#include <cmath>

#include "sim/simulate.h"

namespace molen::sim {
namespace {

struct BusySeconds {
  double products = 0.0, memory = 0.0;
};

BusySeconds busy_of(const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
  BusySeconds busy;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    if (step.stream != program::Stream::kCompute || program::is_communication(step.op)) continue;
    (step.hardware_flops.value > 0.0 ? busy.products : busy.memory) += timeline.ops[i].seconds();
  }
  return busy;
}

double in_quadrature(std::initializer_list<double> spreads) {
  double sum = 0.0;
  for (const double s : spreads) sum += s * s;
  return std::sqrt(sum);
}

}  // namespace

StepEnergy energy_of(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                     const cluster::Cluster& c, const Factors& factors, double time_spread) {
  const double step = step_seconds(timelines), idle = c.device.idle_power.value,
               range = c.device.peak_power.value - idle;
  const double ranks = stages.program(0).grid.ranks(), of_stage = ranks / static_cast<double>(stages.size());
  StepEnergy e;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const BusySeconds busy = busy_of(stages.ops(s), timelines[s]);
    const double waiting = std::max(0.0, step - busy.products - busy.memory);
    const double active = busy.products * factors.of("power_products") + busy.memory * factors.of("power_memory") +
                          waiting * factors.of("power_waiting");
    e.devices += Joules(of_stage * (step * idle + active * range));
  }
  e.hosts = Joules(std::ceil(ranks / c.node.devices) * c.node.host_power.value * step);
  e.site = e.computers().value * c.site.pue.value;
  e.kg_co2e = e.site * c.site.intensity.value;
  e.spread = in_quadrature({time_spread, c.device.peak_power.spread, c.node.host_power.spread, c.site.pue.spread});
  return e;
}

}  // namespace molen::sim
