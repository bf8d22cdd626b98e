// Tests the two phases that are waits. What each test expects is counted in milliseconds, one after another.
#include "train/observe/phase_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/rng.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

using program::Stream;

constexpr std::int64_t kMs = 1'000'000, kStart = 7'000 * kMs;

program::Program program_of(int stages, int stage, program::Offload offload = {}) {
  auto a = arch::preset("llama-tiny");
  a.layers = 4;
  a.tied = stages > 1;  // the first and the last stage sum the gradients of their table
  program::Setting s;
  s.offload = offload;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline.stage = stage;
  s.global_batch = 8;
  s.micro_batch = 1;
  s.sequence = 64;
  return program::build(a, s);
}

bool is_message(const program::Expanded& op) {
  const auto axis = program::axis_of(op.step->op);
  return axis && (*axis == program::Axis::kPp || *axis == program::Axis::kEmbedding);
}

// The ops of each stream one after another, with pauses between them, all in whole milliseconds. Messages wait for a
// part of their time.
program::Timeline made_up(const std::vector<program::Expanded>& ops, std::uint64_t seed) {
  const std::uint64_t key = stream_key(seed, "timeline");
  std::uint64_t draws = 0;
  const auto draw = [&](int most) { return static_cast<std::int64_t>(uniform_at(key, draws++) * (most + 1)); };
  std::map<Stream, std::int64_t> end;
  program::Timeline t;
  t.start_ns = kStart;
  for (const program::Expanded& op : ops) {
    const std::int64_t from = end[op.step->stream] + draw(3), took = draw(is_message(op) ? 30 : 4);
    const double waited = is_message(op) ? static_cast<double>(draw(static_cast<int>(took))) : 0.0;
    t.ops.push_back({1e-3 * static_cast<double>(from), 1e-3 * static_cast<double>(from + took), 0.0, 1e-3 * waited});
    end[op.step->stream] = from + took;
    t.total_s = std::max(t.total_s, t.ops.back().end_s);
  }
  return t;
}

// For each millisecond of the step: how many times a phase has it.
using Counts = std::map<std::string, std::map<std::int64_t, int>>;

Counts counted(const std::vector<PhaseTime>& times) {
  Counts counts;
  for (const PhaseTime& t : times) {
    EXPECT_EQ((t.start_ns - kStart) % kMs, 0);
    EXPECT_EQ((t.end_ns - kStart) % kMs, 0);
    for (std::int64_t ms = (t.start_ns - kStart) / kMs; ms < (t.end_ns - kStart) / kMs; ++ms)
      ++counts[energy_phases().at(static_cast<std::size_t>(t.phase))][ms];
  }
  return counts;
}

// By definition: each millisecond of each op, and what it belongs to. A bubble belongs to the rank: where several
// messages wait, it counts once.
Counts by_definition(const std::vector<program::Expanded>& ops, const program::Timeline& t,
                     const std::vector<data::LoaderWait>& waits) {
  const auto ms = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e3 + 0.5); };
  std::set<std::int64_t> others, waiting, loading;
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (std::int64_t m = ms(t.ops[i].start_s); m < ms(t.ops[i].end_s); ++m)
      (is_message(ops[i]) && m < ms(t.ops[i].start_s + t.ops[i].waited_s) ? waiting : others).insert(m);
  for (const data::LoaderWait& wait : waits)
    for (std::int64_t m = (wait.start_ns - kStart) / kMs; m < (wait.end_ns - kStart) / kMs; ++m) loading.insert(m);
  Counts counts;
  for (const std::int64_t m : waiting)
    if (!others.contains(m)) counts["bubble"][m] = 1;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    const auto axis = program::axis_of(step.op);
    const Stream stream = axis ? program::stream_of(*axis) : step.stream;
    const bool computes = stream == Stream::kCompute || stream == Stream::kHost;
    const std::string phase(computes ? name_of(step.phase) : name_of(stream));
    for (std::int64_t m = ms(t.ops[i].start_s); m < ms(t.ops[i].end_s); ++m) {
      if (is_message(ops[i]) && waiting.contains(m) && !others.contains(m)) continue;
      const bool load = std::holds_alternative<program::LoadBatch>(step.op) && loading.contains(m);
      ++counts[load ? "data_wait" : phase][m];
    }
  }
  return counts;
}

std::int64_t all_of(const Counts& counts, const std::string& phase) {
  std::int64_t all = 0;
  if (counts.contains(phase))
    for (const auto& [ms, n] : counts.at(phase)) all += n;
  return all;
}

Counts counts_of(const std::vector<program::Expanded>& ops, const program::Timeline& t,
                 const std::vector<data::LoaderWait>& waits) {
  std::vector<PhaseTime> times;
  const std::vector<std::int64_t> of_ops = add_phase_times(ops, t, waits, times);
  Counts counts = counted(times);
  std::map<std::string, std::int64_t> by_phase;
  for (std::size_t i = 0; i < ops.size(); ++i)
    by_phase[energy_phases().at(static_cast<std::size_t>(energy_phase_of(*ops[i].step)))] += of_ops.at(i);
  for (const auto& [phase, ns] : by_phase) EXPECT_EQ(ns, all_of(counts, phase) * kMs) << phase << ", without waits";
  return counts;
}

// Compares made-up timelines of a program with the definition.
void expect_bubbles(const program::Program& p) {
  const auto ops = program::expand(p);
  std::int64_t bubbles = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const program::Timeline t = made_up(ops, seed);
    const Counts want = by_definition(ops, t, {}), got = counts_of(ops, t, {});
    bubbles += all_of(want, "bubble");
    ASSERT_GT(all_of(want, "pp_comm"), 10);
    EXPECT_EQ(got, want) << "seed " << seed;
    if (!want.contains("bubble") || got != want) continue;
    for (const auto& [phase, milliseconds] : got)
      for (const auto& [ms, n] : got.at("bubble"))
        EXPECT_TRUE(phase == "bubble" ? n == 1 : !milliseconds.contains(ms)) << phase << " at " << ms << " ms";
  }
  EXPECT_GT(bubbles, 50);
}

// Each millisecond in which a stage only waits for another one is its bubble, and nothing else.
TEST(PhaseTimes, ABubbleIsTheWaitForAnotherStageBesideWhichNothingRuns) {
  for (const int stage : {0, 1}) expect_bubbles(program_of(2, stage));
}

// A program text may put messages on any stream. Those of several streams overlap and are not in the order of time. One
// that sends is in the way of a bubble, and one that waits is not.
TEST(PhaseTimes, ABubbleIsBesideNoMessageThatSends) {
  program::Program p = program_of(3, 1);  // it has messages with two stages
  int received = 0, sums = 0;
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (std::holds_alternative<program::Receive>(step.op)) step.stream = Stream::kCpComm, ++received;
  ASSERT_GT(received, 1);
  expect_bubbles(p);
  program::Program ends = program_of(2, 1);
  for (program::Body& body : ends.bodies)
    for (program::Step& step : body.steps)
      if (program::axis_of(step.op) == program::Axis::kEmbedding) step.stream = Stream::kEpComm, ++sums;
  ASSERT_GT(sums, 0);
  expect_bubbles(ends);
}

// The work of the host and copies are in the way of a bubble as computation is.
TEST(PhaseTimes, ABubbleIsBesideNoWorkOfTheHostAndNoCopy) {
  const program::Program p = program_of(2, 0, {.optimizer = true, .parameters = true, .activations = true});
  std::set<Stream> used;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps) used.insert(step.stream);
  for (const Stream stream : {Stream::kHost, Stream::kToHost, Stream::kToDevice}) EXPECT_TRUE(used.contains(stream));
  expect_bubbles(p);
}

TEST(PhaseTimes, WithoutAWaitOrAPipelineThereIsNoBubble) {
  const program::Program staged = program_of(2, 1), alone = program_of(1, 0);
  const auto ops = program::expand(staged);
  program::Timeline t = made_up(ops, 3);
  for (program::OpTime& op : t.ops) op.waited_s = 0.0;
  const Counts got = counts_of(ops, t, {});
  EXPECT_FALSE(got.contains("bubble"));
  EXPECT_EQ(got, by_definition(ops, t, {}));
  // A rank of a reduction over data-parallel ranks waits in it.
  const auto others = program::expand(alone);
  program::Timeline waiting = made_up(others, 3);
  for (program::OpTime& op : waiting.ops) op.waited_s = op.seconds();
  EXPECT_FALSE(counts_of(others, waiting, {}).contains("bubble"));
}

// Ops of a phase that follow each other shortly are one time, but not over a bubble, however short it is.
TEST(PhaseTimes, AShortBubbleEndsTheTimesBesideIt) {
  const program::Program p = program_of(2, 1);
  std::vector<program::Expanded> ops;
  const auto all = program::expand(p);
  const auto take = [&](auto&& wanted) { ops.push_back(*std::ranges::find_if(all, wanted)); };
  const auto forward = [](const program::Expanded& e) {
    return e.step->stream == Stream::kCompute && e.step->phase == program::Phase::kForward;
  };
  take(forward), take(is_message), take(forward);
  program::Timeline t;
  t.start_ns = kStart;
  t.ops = {{0.0, 0.001}, {0.0005, 0.001050, 0.0, 0.00054}, {0.001050, 0.002}};
  t.total_s = 0.002;
  std::vector<PhaseTime> times;
  add_phase_times(ops, t, {}, times);
  std::map<std::string, std::int64_t> ns;
  for (const PhaseTime& time : times)
    ns[energy_phases().at(static_cast<std::size_t>(time.phase))] += time.end_ns - time.start_ns;
  EXPECT_EQ(ns,
            (std::map<std::string, std::int64_t>{{"forward", 1'950'000}, {"bubble", 40'000}, {"pp_comm", 510'000}}));
}

// The wait is taken out of the op that loads. The parts of it before and after the op, as for a batch of another step,
// do not count.
TEST(PhaseTimes, ADataWaitIsThePartOfLoadingInWhichTheLoaderHadNoBatch) {
  const program::Program p = program_of(1, 0);
  const auto ops = program::expand(p);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    program::Timeline t = made_up(ops, seed);
    double later_s = 0.0;  // the ops that load come 3 ms later, and take 7 ms more
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const bool loads = std::holds_alternative<program::LoadBatch>(ops[i].step->op);
      t.ops[i].start_s += later_s + (loads ? 0.003 : 0.0);
      if (loads) later_s += 0.010;
      t.ops[i].end_s += later_s;
    }
    std::vector<data::LoaderWait> waits{{kStart - 9 * kMs, kStart - 4 * kMs}};
    int n = 0;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (std::holds_alternative<program::LoadBatch>(ops[i].step->op)) {
        const auto at = [](double seconds) { return kStart + std::llround(seconds * 1e3) * kMs; };
        const std::int64_t start_ns = at(t.ops[i].start_s), end_ns = at(t.ops[i].end_s);
        if (++n == 2) continue;  // one batch was ready
        if (n == 1)
          waits.push_back({start_ns - 2 * kMs, start_ns + 4 * kMs});
        else if (n == 3)
          waits.push_back({end_ns - 4 * kMs, end_ns + 2 * kMs});
        else
          waits.push_back({start_ns + (n % 3) * kMs, start_ns + (n % 3 + 4) * kMs});
      }
    ASSERT_GT(n, 3);
    const Counts got = counts_of(ops, t, waits);
    EXPECT_EQ(all_of(got, "data_wait"), 4 * (n - 1));
    EXPECT_EQ(got, by_definition(ops, t, waits));
    for (const auto& [ms, times] : got.at("data_wait")) EXPECT_TRUE(times == 1 && !got.at("data").contains(ms)) << ms;
  }
}

}  // namespace
}  // namespace molen::train
