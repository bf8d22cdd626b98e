#include "program/timeline.h"

#include <gtest/gtest.h>

#include "program/build.h"

namespace molen::program {
namespace {

arch::Architecture tiny() {
  auto a = arch::preset("llama-tiny");
  a.layers = 4;
  return a;
}

// A program and how its ops ran one after another, whatever their stream.
struct Made {
  Program program;
  std::vector<Expanded> ops;
  Timeline timeline;
};

template <class Seconds>
Made made(const Setting& setting, Seconds&& seconds_of) {
  Made m{build(tiny(), setting), {}, {}};
  m.ops = expand(m.program);
  double now = 0.0;
  for (const Expanded& op : m.ops) {
    const double s = seconds_of(*op.step);
    m.timeline.ops.push_back({now, now + s, s});
    now += s;
  }
  m.timeline.total_s = now + 0.5;  // the rank was let go later
  return m;
}

Setting setting_of(int data, int stages) {
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

// A rank that waits in a reduction has a slow reduction, not a bubble.
TEST(PhaseSeconds, WithoutAPipelineThereIsNoBubble) {
  const auto m = made(setting_of(2, 1), [](const Step& s) { return s.stream == Stream::kCompute ? 1.0 : 10.0; });
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

// What a stage waits for another is the bubble, whichever message it waits for; sums along other axes are not.
TEST(PhaseSeconds, OfAPipelineTheWaitingForOtherStages) {
  const auto between = [](const Step& s) {
    const auto axis = axis_of(s.op);
    return axis && (*axis == Axis::kPp || *axis == Axis::kWorld || *axis == Axis::kEnds);
  };
  for (const int stage : {0, 1}) {
    auto s = setting_of(2, 2);
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

// What runs beside compute costs nothing: only the part that sticks out is booked.
TEST(PhaseSeconds, OnlyWhatComputeWaitsForCounts) {
  auto m = made(setting_of(2, 1), [](const Step&) { return 1.0; });
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

}  // namespace
}  // namespace molen::program
