// A described cluster of round figures, and programs on it, for the tests of this module.
#pragma once

#include "program/build/build.h"
#include "sim/described_costs.h"

namespace molen::sim {

// A device of round figures, four of them in each of four nodes.
inline cluster::Cluster round_cluster() {
  cluster::Cluster c;
  c.name = "round";
  c.nodes = 4;
  c.device.name = "round device";
  c.device.kind = "cuda";
  c.device.peak_fp32.value = 1e13, c.device.peak_16bit.value = 1e14, c.device.peak_fp8.value = 2e14;
  c.device.memory.value = 64e9, c.device.bandwidth.value = 1e12;
  c.device.gemm_efficiency.value = c.device.attention_efficiency.value = c.device.memory_efficiency.value = 1.0;
  c.device.launch.value = 1e-6, c.device.idle_power.value = 100.0, c.device.peak_power.value = 500.0;
  c.node.devices = 4, c.node.host_power.value = 800.0;
  c.node.host_memory.value = 256e9, c.node.host_bandwidth.value = 2e11, c.node.host_link.value = 2e10;
  c.tiers.resize(2);
  c.tiers[0].devices = 4, c.tiers[0].bandwidth.value = 1e11, c.tiers[0].latency.value = 1e-6;
  c.tiers[1].devices = 16, c.tiers[1].bandwidth.value = 1e10, c.tiers[1].latency.value = 1e-5;
  for (auto& tier : c.tiers) tier.efficiency.value = 1.0;
  c.site.pue.value = 1.5, c.site.intensity.value = 1e-7;
  return c;
}

inline Factors neutral() {
  return Factors::parse(
      R"({"gemm": 1, "gemm_terms": 1e-9, "memory": 1, "launch": 1, "inside": 1, "between": 1, "latency": 1, "messages": 1,
          "attention": 1, "attention_backward": 1, "misaligned": 0.5, "scores_bytes": 10, "optimizer": 1, "compiled": 0.25,
          "gemm_fp8": 0.5, "ragged": 1, "interference": 1e-9, "power_products": 1, "power_memory": 0.5, "power_waiting": 0.25})",
      "test");
}

inline DescribedCosts costs_of(const Framework& framework = {}) {
  return {round_cluster(), neutral(), framework};
}

inline program::Program program_of_setting(program::Setting s) {
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  return program::build(arch::preset("llama-tiny"), s);
}

inline program::Setting small_setting() {
  program::Setting s;
  s.global_batch = 16, s.micro_batch = 1, s.sequence = 64;
  return s;
}

// The seconds of all ops of a part, over a step.
inline double seconds_of(const DescribedCosts& costs, const program::Program& p, arch::Part part) {
  double sum = 0.0;
  for (const auto& op : program::expand(p))
    if (const auto* c = std::get_if<program::Compute>(&op.step->op); c && c->part == part)
      sum += costs.seconds(p, *op.step);
  return sum;
}

}  // namespace molen::sim
