#include "sim/described_energy.h"

#include <algorithm>
#include <cmath>

#include "sim/simulate.h"

namespace molen::sim {
namespace {

struct BusySeconds {
  double products = 0.0, memory = 0.0;
};

// The kinds of work that a device takes different power for.
enum class Load { kProducts, kMemory, kWaiting };
Load load_of(const program::Step& step) {
  if (step.stream != program::Stream::kCompute || program::is_communication(step.op) ||
      std::holds_alternative<program::SetClock>(step.op))
    return Load::kWaiting;
  return step.hardware_flops.value > 0.0 ? Load::kProducts : Load::kMemory;
}
double share_of(Load load, const Factors& factors) {
  return factors.of(load == Load::kProducts ? "power_products"
                    : load == Load::kMemory ? "power_memory"
                                            : "power_waiting");
}

BusySeconds busy_of(const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
  BusySeconds busy;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    const Load load = load_of(step);
    if (load != Load::kWaiting) (load == Load::kProducts ? busy.products : busy.memory) += timeline.ops[i].seconds();
  }
  return busy;
}

double in_quadrature(std::initializer_list<double> spreads) {
  double sum = 0.0;
  for (const double s : spreads) sum += s * s;
  return std::sqrt(sum);
}

void set_spreads(StepEnergy& e, double devices_spread_j, const cluster::Cluster& c, double time_spread) {
  const double hosts_spread_j = e.hosts.value * c.node.host_power.spread, all = e.computers().value;
  e.power_spread = all > 0.0 ? in_quadrature({devices_spread_j, hosts_spread_j}) / all : 0.0;
  e.spread = in_quadrature({time_spread, e.power_spread});
  e.site_spread = in_quadrature({e.spread, c.site.pue.spread});
  e.co2e_spread = in_quadrature({e.site_spread, c.site.intensity.spread});
}

}  // namespace

StepEnergy energy_of(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                     const cluster::Cluster& c, const Factors& factors, double time_spread, double between_steps) {
  const double step = step_seconds(timelines) * (1.0 + between_steps), idle = c.device.idle_power.value,
               range = c.device.peak_power.value - idle;
  const double ranks = stages.program(0).grid.ranks(), of_stage = ranks / static_cast<double>(stages.size());
  StepEnergy e;
  double at_idle_s = 0.0, at_peak_s = 0.0;  // of all ranks: idle power times the one and peak power times the other
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const BusySeconds busy = busy_of(stages.ops(s), timelines[s]);
    const double waiting = std::max(0.0, step - busy.products - busy.memory);
    const double active = busy.products * factors.of("power_products") + busy.memory * factors.of("power_memory") +
                          waiting * factors.of("power_waiting");
    e.devices += Joules(of_stage * (step * idle + active * range));
    at_idle_s += of_stage * (step - active), at_peak_s += of_stage * active;
  }
  e.hosts = Joules(std::ceil(ranks / c.node.devices) * c.node.host_power.value * step);
  e.site = e.computers().value * c.site.pue.value;
  e.kg_co2e = e.site * c.site.intensity.value;
  const double of_idle = at_idle_s * idle * c.device.idle_power.spread,
               of_peak = at_peak_s * c.device.peak_power.value * c.device.peak_power.spread,
               of_share = at_peak_s * range * kPowerShareSpread;
  set_spreads(e, in_quadrature({of_idle, of_peak, of_share}), c, time_spread);
  return e;
}

WhereJoules where_joules(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                         const cluster::Cluster& c, const Factors& factors) {
  const double idle = c.device.idle_power.value, range = c.device.peak_power.value - idle;
  const double of_stage = stages.program(0).grid.ranks() / static_cast<double>(stages.size());
  const auto watts = [&](Load load) { return idle + share_of(load, factors) * range; };
  const double waiting = watts(Load::kWaiting), products = watts(Load::kProducts), memory = watts(Load::kMemory);
  WhereJoules where;
  where.phase_j.assign(program::phase_keys().size(), 0.0);
  where.exposed_j.assign(program::kCommStreams.size(), 0.0);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& ops = stages.ops(s);
    std::vector<double> seconds = program::phase_seconds(stages.program(s).setting, ops, timelines[s]).values();
    seconds.back() += step_seconds(timelines) - timelines[s].total_s;
    for (std::size_t i = 0; i < seconds.size(); ++i) where.phase_j[i] += of_stage * waiting * seconds[i];
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Load load = load_of(*ops[i].step);
      if (load == Load::kWaiting) continue;
      const double more = (load == Load::kProducts ? products : memory) - waiting;
      where.phase_j[static_cast<std::size_t>(ops[i].step->phase)] += of_stage * more * timelines[s].ops[i].seconds();
    }
    for (std::size_t i = 0; i < program::kCommStreams.size(); ++i)
      where.exposed_j[i] += of_stage * waiting * program::exposed_seconds(ops, timelines[s], program::kCommStreams[i]);
  }
  return where;
}

}  // namespace molen::sim
