// Programs, and the costs of a made-up machine, for the tests of this module.
#pragma once

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "program/build/build.h"
#include "sim/cost_model.h"

namespace molen::sim {

inline program::Program program_of(int ranks, int zero, std::int64_t global) {
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks;
  s.zero = zero;
  s.global_batch = global;
  s.micro_batch = 2;
  s.sequence = 64;
  return program::build(a, s);
}

inline std::vector<Sample> samples_from(const std::vector<program::Program>& programs, double noise) {
  std::vector<Sample> samples;
  std::uint64_t i = 0;
  for (const auto& p : programs)
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps) {
        // A machine of 1e11 FLOP/s and 1e10 byte/s.
        const double t = 1e-6 + step.hardware_flops.value / 1e11 + static_cast<double>(step.moved.value) / 1e10;
        samples.push_back({fitted_kind(p, step), features_of(step), t * std::exp(noise * normal_at(3, i++))});
      }
  return samples;
}

}  // namespace molen::sim
