// Tests that pipelines compute the same model: schedules x stages x other kinds of parallelism, on thread-ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "program/verify/verify.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Placement;
using program::ScheduleKind;

constexpr std::int64_t kLayers = 5;

arch::Architecture deep_enough(arch::Architecture a) {
  a.layers = kLayers;
  if (a.heads == 3) a.heads = a.kv_heads = 4;  // so that two tensor ranks can share the heads
  return a;
}

Layout piped(int stages, ScheduleKind kind, int chunks, Layout l = {1, 0, false, 3}) {
  l.stages = stages;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}

class PipelineLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(PipelineLayouts, SameModelInDouble) {
  for (const auto& a : {deep_enough(llama(false)), deep_enough(llama(true)), deep_enough(gpt())}) {
    SCOPED_TRACE(fmt::format("{}, tied {}", name_of(a.family), a.tied));
    const Outcome& one =
        train_alone(program::build(a, setting_of(1, 0, false, DType::kF64, GetParam().micro)), proof_steps());
    const auto many = train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
  }
}

TEST_P(PipelineLayouts, OneStepInFloatWithinTheBound) {
  const auto a = deep_enough(llama(false));
  const Outcome& one = train_alone(program::build(a, setting_of(1, 0, false, DType::kF32, GetParam().micro)), 1);
  const auto stages = proved_stages(a, setting_of(GetParam(), DType::kF32));
  const Difference d = difference(one, train_threads(stages, 1));
  const Bounds bounds = bounds_of(stages[0]);
  expect_within(d, bounds);
}

// Dead values are never read, and nothing depends on chance.
TEST_P(PipelineLayouts, DeadBuffersAreDead) {
  const auto stages = proved_stages(deep_enough(llama(true)), setting_of(GetParam(), DType::kF32));
  expect_dead_buffers_unread(stages);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int stages : {2, 3, 4})
    for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::k1f1b}) all.push_back(piped(stages, kind, 1));
  all.push_back(piped(2, ScheduleKind::kInterleaved, 2));
  all.push_back(piped(5, ScheduleKind::k1f1b, 1, {1, 0, true, 1}));
  all.push_back(piped(2, ScheduleKind::k1f1b, 1, {1, 0, false, 12}));  // one micro-batch
  all.push_back(piped(2, ScheduleKind::kInterleaved, 2, {2, 1, false, 2}));
  for (const int zero : {0, 1, 2, 3}) all.push_back(piped(2, ScheduleKind::k1f1b, 1, {2, zero, zero == 3, 2}));
  all.push_back(piped(2, ScheduleKind::kGpipe, 1, {2, 3, false, 2, 2}));
  all.push_back(piped(2, ScheduleKind::k1f1b, 1, {2, 2, false, 2, 2, true}));
  for (const bool rows : {false, true}) {
    Layout tensor{1, 0, rows, 3};
    tensor.tensor = 2;
    tensor.rows = rows;
    all.push_back(piped(2, ScheduleKind::k1f1b, 1, tensor));
    tensor.shards = 2;
    tensor.zero = 2;
    all.push_back(piped(2, ScheduleKind::kInterleaved, 2, tensor));
  }
  all.push_back(piped(3, ScheduleKind::k1f1b, 1, Layout{1, 0}.recomputing("attention,norm_up,activation/2")));
  for (const auto& [kind, chunks] : {std::pair{ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbV, 2}}) {
    all.push_back(piped(2, kind, chunks));
    if (kind == ScheduleKind::kZbH1) all.push_back(piped(4, kind, chunks));
    all.push_back(piped(2, kind, chunks, {1, 0, true, 12}));
    for (const int zero : {1, 2, 3}) all.push_back(piped(2, kind, chunks, {2, zero, zero == 2, 2}));
    for (const bool rows : {false, true}) {
      Layout tensor{1, 0, false, 3};
      tensor.tensor = 2;
      tensor.rows = rows;
      all.push_back(piped(2, kind, chunks, tensor));
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, PipelineLayouts, ::testing::ValuesIn(suite::covering(layouts())));

// The stages are as uneven as possible, and the schedule is read from a file that was written by hand: all forwards
// before all backwards.
TEST(Pipeline, TakesLayersAndOrderAsTheyAreSaid) {
  const auto a = deep_enough(llama(false));
  const Outcome& one = train_alone(program::build(a, setting_of(1, 0, false, DType::kF64, 6)), 5);
  program::Setting s = setting_of(piped(2, ScheduleKind::k1f1b, 1, {1, 0, false, 6}), DType::kF64);
  s.pipeline.layers = {1, 4};
  EXPECT_LE(difference(one, train_threads(proved_stages(a, s), 5)).parameters, 1e-9);
  s.pipeline.schedule = ScheduleKind::kFile;
  const auto file = program::parse_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "file.csv");
  EXPECT_LE(difference(one, train_threads(proved_stages(a, s, &file), 5)).parameters, 1e-9);
  // This schedule mixes whole and split backwards.
  s.pipeline.halves = true;
  const auto mixed = program::parse_schedule("0F0,0F1,0I0,0B1,0W0\n1F0,1I0,1F1,1W0,1B1\n", "file.csv");
  EXPECT_TRUE(program::has_halves(mixed));
  EXPECT_LE(difference(one, train_threads(proved_stages(a, s, &mixed), 5)).parameters, 1e-9);
  s.pipeline.halves = false;
  EXPECT_THROW(program::build_stages(a, s, &mixed), UsageError);
  const auto descending = program::parse_schedule("0F1,0F0,0B0,0B1\n1F1,1F0,1B0,1B1\n", "file.csv");
  EXPECT_THROW(program::build_stages(a, s, &descending), UsageError);
  s.pipeline.layers = {1, 3};
  EXPECT_THROW(program::build_stages(a, s, &file), UsageError);
}

}  // namespace
}  // namespace molen::prove
