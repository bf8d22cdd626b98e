// Tests how much communication a program hides. Each op is a sleep, and the model has sixteen equal units. Each
// collective takes half as long as the computation of its unit.
#include <gtest/gtest.h>

#include "program/ir/timeline.h"
#include "program/values/signature.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Axis;
using program::Compute;
using program::Program;

constexpr int kUnits = 16;
constexpr double kUnit = 24e-3;  // seconds that a unit computes in each direction

// The model has an embedding, 14 layers, and a final norm with the head. Each unit computes for kUnit forward and kUnit
// backward, whatever its parts are, and its update takes kUnit as well.
double overlap_seconds(const Program& p, const program::Step& step) {
  if (program::is_communication(step.op)) return program::unit_of_step(p, step) >= 0 ? kUnit / 2 : 0.0;
  if (std::holds_alternative<program::OptimizerStep>(step.op)) return kUnit;
  const auto* c = std::get_if<Compute>(&step.op);
  if (!c) return 0.0;
  if (c->layer >= 0) return kUnit / 6;
  if (c->part == arch::Part::kFinalNorm) return 0.0;
  // The head computes loss and gradient, which belong to both directions, in one op.
  return c->part == arch::Part::kHead ? 2 * kUnit / static_cast<double>(p.setting.head_chunks()) : kUnit;
}

// Returns the communication over dp_shard (dp for stage 1) and the part of it that ran beside computation, on rank 0 of
// two.
program::Overlap measured(int zero, int prefetch) {
  auto a = llama(false);
  a.layers = kUnits - 2;
  Layout l{2, zero, false, 6};
  l.prefetch = prefetch;
  const Program p = program::build(a, setting_of(l, DType::kF64));
  program::require_sound(p, "test");
  return hidden_of(p, zero >= 2 ? Axis::kShard : Axis::kDp,
                   [&](const program::Step& step) { return overlap_seconds(p, step); });
}

TEST(Overlap, ShardedStagesHideFourFifths) {
  for (const int zero : {2, 3}) {
    const program::Overlap o = measured(zero, 1);
    fmt::print("ZeRO-{}, prefetch 1: {:.1f} % of {:.2f} s of communication hidden\n", zero, 100 * o.share(), o.seconds);
    // The gather before the first use, the reduction after the last backward and ZeRO-2's last gather run beside no
    // computation.
    EXPECT_GE(o.share(), 0.8) << zero;
    EXPECT_LT(o.share(), 1.0) << zero;
    EXPECT_GT(o.seconds, (zero == 3 ? 3 : 2) * kUnits * kUnit / 2 * 0.9);
  }
}

// Without prefetch the step waits for every gather; only the reductions are hidden.
TEST(Overlap, NothingIsGatheredAheadWithoutPrefetch) {
  const program::Overlap o = measured(3, 0);
  fmt::print("ZeRO-3, no prefetch: {:.1f} % hidden\n", 100 * o.share());
  EXPECT_LT(o.share(), measured(3, 1).share() - 0.2);
}

// The overlap of two ops of computation around one collective is computed by hand.
TEST(Overlap, CountsWhatRunsBeside) {
  const Program p = program::build(llama(false), setting_of(Layout{2, 0}, DType::kF64));
  const auto ops = program::expand(p);
  program::Timeline t;
  t.ops.assign(ops.size(), {100.0, 100.0});
  std::vector<std::size_t> compute;
  std::size_t collective = 0;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream == program::Stream::kCompute)
      compute.push_back(i);
    else if (collective == 0)
      collective = i;
  for (const std::size_t i : compute) t.ops[i] = {50.0, 50.0};
  t.ops[compute[0]] = {0.0, 2.0};
  t.ops[compute[1]] = {3.0, 5.0};
  t.ops[collective] = {1.0, 4.0};
  const program::Overlap o = program::overlap_of(ops, t, Axis::kDp);
  EXPECT_DOUBLE_EQ(o.seconds, 3.0);
  EXPECT_DOUBLE_EQ(o.hidden_s, 2.0);
}

}  // namespace
}  // namespace molen::prove
