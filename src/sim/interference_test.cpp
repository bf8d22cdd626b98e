#include "sim/interference.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "sim/described_costs.h"
#include "sim/longest_paths.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

// Stages that are sharded over two ranks: compute, collectives and messages.
program::Stages pipeline_with(int count) {
  auto a = arch::preset("llama-tiny");
  a.layers = 2 * count;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = count;
  s.recompute = program::Recompute::full();
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 3;
  s.global_batch = 16;
  s.sequence = 32;
  return program::Stages(program::build_stages(a, s));
}

std::vector<std::vector<double>> random_seconds(const program::Stages& stages, std::uint64_t seed) {
  std::vector<std::vector<double>> work(stages.size());
  std::uint64_t i = 0;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t k = 0; k < stages.ops(s).size(); ++k) work[s].push_back(uniform_at(seed, i++));
  return work;
}

double active_from(const program::OpTime& time) {
  return time.start_s + time.waited_s;
}

TEST(Interference, ComputeLosesTheShareOfWhatRunsBesideIt) {
  const program::Stages stages = pipeline_with(2);
  Interference shares{};
  shares[static_cast<std::size_t>(program::Stream::kDpComm)] = 0.25;
  shares[static_cast<std::size_t>(program::Stream::kPpComm)] = 1.0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const auto work = random_seconds(stages, seed);
    const auto timelines = *longest_paths(stages, work, false);
    const auto lost = interfered(stages, timelines, work, shares);
    int beside = 0;
    for (std::size_t s = 0; s < stages.size(); ++s)
      for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
        double expected = work[s][i];
        const auto& own = timelines[s].ops[i];
        if (stages.ops(s)[i].step->stream == program::Stream::kCompute)
          for (std::size_t k = 0; k < stages.ops(s).size(); ++k) {
            const auto stream = stages.ops(s)[k].step->stream;
            const auto& other = timelines[s].ops[k];
            const double both = std::min(own.end_s, other.end_s) - std::max(active_from(own), active_from(other));
            if (stream == program::Stream::kCompute || both <= 0.0) continue;
            expected += shares[static_cast<std::size_t>(stream)] * both;
            ++beside;
          }
        ASSERT_NEAR(lost[s][i], expected, 1e-9) << "stage " << s << ", op " << i;
      }
    EXPECT_GT(beside, 20);
    EXPECT_EQ(interfered(stages, timelines, work, {}), work);
  }
}

DescribedCosts costs_with(double interference, bool messages_beside_compute) {
  Framework framework;
  framework.messages_beside_compute = messages_beside_compute;
  return {cluster::find("snellius-h100"), Factors::parse(fmt::format(R"({{"interference": {}}})", interference), "t"),
          framework};
}

TEST(Interference, LengthensTheStepThatIsSimulated) {
  const program::Stages stages = pipeline_with(4);
  const double alone = step_seconds(simulate(stages, costs_with(1e-9, true)));
  const double beside = step_seconds(simulate(stages, costs_with(0.5, true)));
  EXPECT_GT(beside, alone);
  // Compute loses at most the share of all communication.
  double communication = 0.0;
  const auto timelines = simulate(stages, costs_with(1e-9, true));
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t i = 0; i < stages.ops(s).size(); ++i)
      if (program::communicates(stages.ops(s)[i].step->stream))
        communication += timelines[s].ops[i].seconds() - timelines[s].ops[i].waited_s;
  EXPECT_LE(beside, alone + 0.5 * communication);
  EXPECT_GT(step_seconds(simulate(stages, costs_with(1e-9, false))), alone);
}

}  // namespace
}  // namespace molen::sim
