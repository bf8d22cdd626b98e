#include "sim/rescheduled.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sim/described_costs.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

program::Stages stages_with(int stages, int zero) {
  auto a = arch::preset("llama-tiny");
  a.layers = 2 * stages;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  s.mesh[mesh::Axis::kDpReplicate] = 2;
  s.zero = zero;
  s.global_batch = 16;
  s.sequence = 32;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  return program::Stages(program::build_stages(a, s));
}

bool reduces(const program::Step& step) {
  return step.phase == program::Phase::kGradientReduce && step.stream == program::Stream::kDpComm;
}

TEST(Rescheduled, TheLastReductionHasTheWorkOfAll) {
  const program::Stages stages = stages_with(1, 0);
  const auto& ops = stages.ops(0);
  std::vector<double> work(ops.size(), 1.0);
  reduce_last(ops, work);
  double last = 0.0, others = 0.0;
  int reductions = 0;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (reduces(*ops[i].step)) {
      others += last;
      last = work[i];
      ++reductions;
    } else {
      EXPECT_EQ(work[i], 1.0);
    }
  EXPECT_GT(reductions, 2);
  EXPECT_EQ(last, reductions);
  EXPECT_EQ(others, 0.0);
}

// The first stage reduces each unit beside the rest of its last backward, unless all reductions come at the end.
TEST(Rescheduled, ReductionsAtTheEndRunBesideNoBackward) {
  const program::Stages stages = stages_with(4, 0);
  const auto seconds = [&](double bandwidth, bool last) {
    cluster::Cluster c = cluster::find("snellius-h100");
    for (auto& tier : c.tiers) tier.bandwidth.value = bandwidth, tier.latency.value = 1e-12;
    c.device.launch.value = 1e-12;
    Framework framework;
    framework.reduces_last = last;
    return step_seconds(
        simulate(stages, DescribedCosts(c, Factors::parse(R"({"interference": 1e-9})", "t"), framework)));
  };
  const double slow = 1e8;
  EXPECT_GT(seconds(slow, true), seconds(slow, false));
  EXPECT_NEAR(seconds(1e15, true), seconds(1e15, false), 1e-3 * seconds(1e15, false));
}

TEST(Rescheduled, GathersRunBesideTheFirstForward) {
  const program::Stages stages = stages_with(1, 1);
  const auto& ops = stages.ops(0);
  const auto of = [&](const std::vector<double>& work, const auto& wanted) {
    double seconds = 0.0;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (wanted(ops[i])) seconds += work[i];
    return seconds;
  };
  const auto gathers = [](const program::Expanded& op) {
    return std::holds_alternative<program::AllGather>(op.step->op);
  };
  const auto forward = [](const program::Expanded& op) {
    return op.micro_batch == 0 && op.step->phase == program::Phase::kForward &&
           op.step->stream == program::Stream::kCompute;
  };
  for (const double long_gather : {1e-3, 100.0}) {
    std::vector<double> work;
    for (const auto& op : ops) work.push_back(gathers(op) ? long_gather : 1.0);
    const double before = of(work, gathers), beside = of(work, forward),
                 all = std::accumulate(work.begin(), work.end(), 0.0);
    ASSERT_GT(before, 0.0);
    gather_in_forward(ops, work);
    EXPECT_NEAR(of(work, gathers), std::max(0.0, before - beside), 1e-9 * before);
    EXPECT_NEAR(all - std::accumulate(work.begin(), work.end(), 0.0), std::min(before, beside), 1e-9 * all);
  }
}

}  // namespace
}  // namespace molen::sim
