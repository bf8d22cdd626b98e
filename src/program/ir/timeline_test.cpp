#include "program/ir/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"
#include "program/build/build.h"

namespace molen::program {
namespace {

arch::Architecture timed_model() {
  auto a = arch::preset("llama-tiny");
  a.layers = 4;
  return a;
}

// A program, and the times of its ops when they run one after another, whatever their stream.
struct Made {
  Program program;
  std::vector<Expanded> ops;
  Timeline timeline;
};

template <class Seconds>
Made made(const Setting& setting, Seconds&& seconds_of) {
  Made m{build(timed_model(), setting), {}, {}};
  m.ops = expand(m.program);
  double now = 0.0;
  for (const Expanded& op : m.ops) {
    const double s = seconds_of(*op.step);
    m.timeline.ops.push_back({now, now + s, s});
    now += s;
  }
  m.timeline.total_s = now + 0.5;  // the rank could continue only later
  return m;
}

Setting timeline_setting(int data, int stages) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = data;
  s.mesh[mesh::Axis::kPp] = stages;
  s.global_batch = 4 * data;
  s.micro_batch = 1;
  s.sequence = 64;
  return s;
}

double sum_of(const PhaseSeconds& p) {
  double sum = 0.0;
  for (const double s : p.values()) sum += s;
  return sum;
}

// A rank that waits in a reduction spends that time in the reduction; it has no bubble.
TEST(PhaseSeconds, WithoutAPipelineThereIsNoBubble) {
  const auto m = made(timeline_setting(2, 1), [](const Step& s) { return s.stream == Stream::kCompute ? 1.0 : 10.0; });
  double reducing = 0.0, clipping = 0.0;
  for (std::size_t i = 0; i < m.ops.size(); ++i)
    if (const Step& s = *m.ops[i].step; s.stream == Stream::kDpComm)
      (s.phase == Phase::kGradientReduce ? reducing : clipping) += 10.0;
  ASSERT_GT(reducing, 0.0);
  const auto p = phase_seconds(m.program.setting, m.ops, m.timeline);
  EXPECT_EQ(p.bubble_s, 0.0);
  EXPECT_DOUBLE_EQ(p.idle_s, 0.5);
  EXPECT_GE(p.phase_s[static_cast<std::size_t>(Phase::kGradientReduce)], reducing);
  EXPECT_NEAR(sum_of(p), m.timeline.total_s, 1e-9);
}

// The time that a stage waits for another stage is the bubble, whichever message it waits for. Sums along other axes do
// not count as bubble.
TEST(PhaseSeconds, OfAPipelineTheWaitingForOtherStages) {
  const auto between = [](const Step& s) {
    const auto axis = axis_of(s.op);
    return axis && (*axis == Axis::kPp || *axis == Axis::kWorld || *axis == Axis::kEmbedding);
  };
  for (const int stage : {0, 1}) {
    auto s = timeline_setting(2, 2);
    s.pipeline.stage = stage;
    const auto m = made(s, [&](const Step& step) { return between(step) ? 3.0 : 1.0; });
    double waited = 0.0;
    for (const auto& op : m.ops)
      if (between(*op.step)) waited += 3.0;
    ASSERT_GT(waited, 0.0);
    const auto p = phase_seconds(m.program.setting, m.ops, m.timeline);
    EXPECT_DOUBLE_EQ(p.bubble_s, waited);
    EXPECT_GT(p.phase_s[static_cast<std::size_t>(Phase::kGradientReduce)], 0.0);
    EXPECT_NEAR(sum_of(p), m.timeline.total_s, 1e-9);
  }
}

// Communication beside compute takes no time of the step: a phase counts only the time in which compute waits.
TEST(PhaseSeconds, OnlyWhatComputeWaitsForCounts) {
  auto m = made(timeline_setting(2, 1), [](const Step&) { return 1.0; });
  double compute = 0.0, end = 0.0;
  std::size_t comm = m.ops.size();
  for (std::size_t i = 0; i < m.ops.size(); ++i) {
    auto& t = m.timeline.ops[i];
    if (m.ops[i].step->stream == Stream::kCompute) {
      t = {compute, compute + 1.0, 1.0};
      compute += 1.0;
    } else {
      comm = std::min(comm, i);
      t = {end, end, 0.0};
    }
  }
  ASSERT_LT(comm, m.ops.size());
  m.timeline.ops[comm] = {0.25, compute + 2.0, 0.0};
  for (std::size_t i = comm + 1; i < m.ops.size(); ++i)
    if (m.ops[i].step->stream != Stream::kCompute) m.timeline.ops[i] = {compute + 2.0, compute + 2.0, 0.0};
  m.timeline.total_s = compute + 3.0;
  const auto p = phase_seconds(m.program.setting, m.ops, m.timeline);
  EXPECT_DOUBLE_EQ(p.idle_s, 1.0);
  EXPECT_NEAR(sum_of(p), m.timeline.total_s, 1e-9);
  double phases = 0.0;
  for (const double s : p.phase_s) phases += s;
  EXPECT_NEAR(phases, compute + 2.0, 1e-9);
}

// The share of the sums over an axis that runs beside compute. It is 1 when there are no sums.
TEST(Overlap, IsWhatComputeCovers) {
  auto m = made(timeline_setting(2, 1), [](const Step&) { return 0.0; });
  for (OpTime& t : m.timeline.ops) t = {100.0, 100.0};
  std::vector<std::size_t> sums, compute;
  for (std::size_t i = 0; i < m.ops.size(); ++i) {
    if (axis_of(m.ops[i].step->op) == Axis::kDp) sums.push_back(i);
    if (m.ops[i].step->stream == Stream::kCompute) compute.push_back(i);
  }
  ASSERT_GE(sums.size(), 2u);
  ASSERT_GE(compute.size(), 2u);
  for (std::size_t i = 0; i < compute.size(); ++i) m.timeline.ops[compute[i]] = {50.0, 50.0};
  m.timeline.ops[compute[0]] = {0.0, 4.0};
  m.timeline.ops[compute[1]] = {6.0, 10.0};
  for (const std::size_t i : sums) m.timeline.ops[i] = {20.0, 20.0};
  m.timeline.ops[sums[0]] = {3.0, 7.0};   // of 4 seconds, 1 and 1 beside compute
  m.timeline.ops[sums[1]] = {9.0, 11.0};  // of 2 seconds, 1 beside compute
  const Overlap o = overlap_of(m.ops, m.timeline, Axis::kDp);
  EXPECT_DOUBLE_EQ(o.seconds, 6.0);
  EXPECT_DOUBLE_EQ(o.hidden_s, 3.0);
  EXPECT_DOUBLE_EQ(o.share(), 0.5);
  EXPECT_DOUBLE_EQ(overlap_of(m.ops, m.timeline, Axis::kTp).share(), 1.0);
  EXPECT_DOUBLE_EQ(exposed_seconds(m.ops, m.timeline, Stream::kDpComm), 3.0);
  EXPECT_DOUBLE_EQ(exposed_seconds(m.ops, m.timeline, Stream::kTpComm), 0.0);
}

// Communication on the compute stream does not hide itself.
TEST(Overlap, CommunicationOnTheComputeStreamIsNoComputation) {
  auto m = made(timeline_setting(2, 1), [](const Step&) { return 1.0; });
  for (Body& body : m.program.bodies)
    for (Step& step : body.steps)
      if (step.stream == Stream::kDpComm) step.stream = Stream::kCompute;
  const Overlap o = overlap_of(expand(m.program), m.timeline, Axis::kDp);
  EXPECT_GT(o.seconds, 0.0);
  EXPECT_EQ(o.hidden_s, 0.0);
}

}  // namespace
}  // namespace molen::program
