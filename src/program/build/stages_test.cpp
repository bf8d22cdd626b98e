// Tests the programs of all stages of a pipeline together: that their messages match, and which settings are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/values/of_op.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

Setting staged(int stages, ScheduleKind kind = ScheduleKind::k1f1b) {
  Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline = pipeline_of(kind, kind == ScheduleKind::kInterleaved ? 2 : 1);
  s.global_batch = 4;
  s.sequence = 8;
  return s;
}

arch::Architecture seven_layers(bool tied = false) {
  arch::Architecture a = tiny(tied);
  a.layers = 7;
  return a;
}

// Returns whether some finding contains the text.
::testing::AssertionResult finds(const Program& p, const std::string& text) {
  std::string all;
  for (const Finding& f : verify(p)) {
    if (f.text.find(text) != std::string::npos) return ::testing::AssertionSuccess();
    all += "\n  " + f.text;
  }
  return ::testing::AssertionFailure() << "not found: " << text << all;
}

// Validation runs all stages forward once, whatever order training gives them.
TEST(Stages, EvaluateInTurn) {
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (const int count : {2, 3}) {
      Setting s = staged(count, kind);
      s.purpose = Purpose::kEvaluate;
      const auto stages = build_stages(seven_layers(), s);
      ASSERT_EQ(std::ssize(stages), count);
      std::vector<std::int64_t> layers;
      int heads = 0;
      for (const Program& p : stages) {
        EXPECT_TRUE(verify(p).empty()) << name_of(kind) << ": " << verify(p)[0].text;
        EXPECT_EQ(parse(print(p), "text"), p);
        for (const Expanded& e : expand(p))
          if (const auto* c = std::get_if<Compute>(&e.step->op)) {
            EXPECT_EQ(c->pass, Pass::kForward);
            if (c->part == arch::Part::kAttention) layers.push_back(c->layer);
            heads += c->part == arch::Part::kHead;
          }
      }
      const auto between = verify_world(stages);
      EXPECT_TRUE(between.empty()) << name_of(kind) << ": " << between[0].text;
      std::sort(layers.begin(), layers.end());
      EXPECT_EQ(layers, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
      EXPECT_EQ(heads, 1);
    }
}

// An evaluation does not depend on the order of training, which a file may give.
TEST(Stages, EvaluateWithoutTheFileOfTheSchedule) {
  Setting s = staged(2);
  s.pipeline.schedule = ScheduleKind::kFile;
  s.purpose = Purpose::kEvaluate;
  EXPECT_EQ(build_stages(seven_layers(), s).size(), 2u);
}

// The model has fewer layers than the stages have chunks, but not fewer than there are stages.
TEST(Stages, EachChunkNeedsALayer) {
  Setting s = staged(2, ScheduleKind::kInterleaved);
  try {
    build(tiny(), s);
    ADD_FAILURE() << "three layers in four chunks";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "parallel.pipeline: 2 stages x 2 chunks need a layer each; the model has 3");
  }
  arch::Architecture four = tiny();
  four.layers = 4;
  EXPECT_NO_THROW(build(four, s));
}

// At the turn of a V, one chunk of a stage hands a value to the next chunk without a message. Such a value leaves the
// device once.
TEST(Stages, ActivationsLeaveTheDeviceOnce) {
  for (const ScheduleKind kind :
       {ScheduleKind::k1f1b, ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    Setting s = staged(2, kind);
    s.offload.activations = true;
    for (const Program& p : build_stages(seven_layers(), s)) {
      std::map<int, int> copies;
      for (const Body& body : p.bodies)
        for (const Step& step : body.steps)
          if (std::holds_alternative<CopyToHost>(step.op)) ++copies[step.operand(Arg::kFrom).buffer];
      EXPECT_FALSE(copies.empty());
      for (const auto& [buffer, count] : copies)
        EXPECT_EQ(count, 1) << name_of(kind) << ": " << p.buffers[static_cast<std::size_t>(buffer)].name;
    }
  }
}

TEST(Stages, LayersMayBeGiven) {
  Setting s = staged(2);
  s.pipeline.layers = {5, 2};
  const auto stages = build_stages(seven_layers(), s);
  EXPECT_EQ(stages[0].chunks[0].end, 5);
  EXPECT_EQ(stages[1].chunks[0].first, 5);
  for (const Program& p : stages) {
    EXPECT_TRUE(verify(p).empty());
    EXPECT_EQ(parse(print(p), "text"), p);
  }
}

// Returns the program with one line edited, and with costs computed anew for the edited ops.
Program edited(const Program& p, const std::string& line, const std::string& from, const std::string& to) {
  return pass::costs(parse(rewrite(print(p), {line}, from, to), "edited"));
}

// The two ends sum their shares of a tied table once, and sum nothing else.
TEST(Stages, OnlyTheTableIsOfBothEnds) {
  const Program p = build_stages(seven_layers(true), staged(2))[0];
  ASSERT_TRUE(verify(p).empty());
  EXPECT_TRUE(finds(edited(p, "all_reduce axis=embedding", "updates=to:grad.embed", "updates=to:grad.layer.1"),
                    "the other end of the pipeline has no such gradient"));
}

// An op that names no unit where it needs one gets a finding and causes no crash.
TEST(Stages, OpsThatNameNoUnit) {
  Setting s = staged(1);
  s.offload.optimizer = true;
  const Program p = build(tiny(), s);
  EXPECT_TRUE(finds(
      edited(p, " copy_to_host ", "reads=from:grad.embed writes=to:grad_host.embed", "reads=from:x.0 writes=to:x.1"),
      "names no parameter unit"));
  EXPECT_TRUE(finds(edited(p, " sum_squares ", "reads=grad:grad.embed", "reads=grad:x.0"), "names no parameter unit"));
}

// The first buffer is packed like any other. The scratch of an op that uses it has a place of its own. The scratch is
// placed before the buffer when it is larger, and after the buffer otherwise.
TEST(Stages, ScratchStaysOffTheFirstBuffer) {
  Setting s = staged(2);
  s.purpose = Purpose::kEvaluate;
  s.sequence = 300;
  Program p = build_stages(tiny(), s)[0];
  ASSERT_EQ(p.buffers[0].name, "ids");
  ASSERT_TRUE(packed(p.buffers[0]));
  std::vector<std::pair<std::size_t, std::size_t>> users;  // body and op
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      for (const Use& use : p.bodies[b].steps[k].operands)
        if (use.reads() && use.buffer == 0) users.emplace_back(b, k);
  ASSERT_FALSE(users.empty());
  for (const std::int64_t scratch : {64, 1 << 20}) {
    for (const auto& [b, k] : users) p.bodies[b].steps[k].scratch = Bytes(scratch);
    const MemoryPlan plan = plan_memory(p);
    const std::int64_t first = plan.buffer_offset[0], end = first + p.buffers[0].bytes().value;
    for (const auto& [b, k] : users) {
      const std::int64_t at = plan.scratch_offset[b][k];
      EXPECT_TRUE(at >= end || at + scratch <= first)
          << scratch << " at " << at << " beside " << first << " to " << end;
    }
  }
}

// The chunks of the schedules that have several.
int chunks_of(ScheduleKind kind) {
  return kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
}

// Returns the stages of a pipeline of two data-parallel ranks whose gradients are reduced in the last micro-batch.
std::vector<Program> data_parallel_stages(int count, ScheduleKind kind, int zero, DType reduce) {
  Setting s = staged(count);
  s.pipeline = pipeline_of(kind, chunks_of(kind));
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = zero;
  s.global_batch = 2 * (count + 1);
  s.reduce = reduce;
  arch::Architecture a = tiny(true);
  a.layers = 2 * count * chunks_of(kind);
  return build_stages(a, s);
}

bool reduces_over_data(const Step& step) {
  const auto axis = axis_of(step.op);
  return step.phase == Phase::kGradientReduce && axis && *axis != Axis::kEmbedding;
}

// On a stage, each gradient is reduced once, and no reduction is in front of a message. Where communicators take turns,
// a message waits for the communication in front of it.
TEST(Stages, NoReductionIsInFrontOfAMessage) {
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (const int count : {2, 4})
      for (const int zero : {0, 1})
        for (const DType reduce : {DType::kF32, DType::kBF16}) {
          SCOPED_TRACE(fmt::format("{}, {} stages, zero {}, {}", name_of(kind), count, zero, name_of(reduce)));
          const auto stages = data_parallel_stages(count, kind, zero, reduce);
          EXPECT_TRUE(verify_world(stages).empty());
          for (const Program& p : stages) {
            for (const Finding& f : verify(p)) ADD_FAILURE() << f.text;
            EXPECT_EQ(parse(print(p), "text"), p);
            std::map<int, int> reductions;  // by unit
            int messages = 0;
            for (const Expanded& e : expand(p)) {
              if (reduces_over_data(*e.step)) ++reductions[unit_of_step(p, *e.step)];
              if (!std::holds_alternative<Send>(e.step->op) && !std::holds_alternative<Receive>(e.step->op)) continue;
              ++messages;
              EXPECT_TRUE(reductions.empty()) << text_of(p, e) << " is behind a reduction";
            }
            EXPECT_GT(messages, 0);
            EXPECT_EQ(std::ssize(reductions), std::ssize(p.units));
            for (const auto& [unit, times] : reductions) EXPECT_EQ(times, 1) << unit;
          }
        }
}

// Where no message follows, each gradient is reduced as soon as it is finished, beside the rest of the backward.
TEST(Stages, TheFirstStageReducesBesideItsLastBackward) {
  for (const int zero : {0, 1}) {
    const auto stages = data_parallel_stages(4, ScheduleKind::k1f1b, zero, DType::kF32);
    for (std::size_t stage = 0; stage < stages.size(); ++stage)
      for (const Body& body : stages[stage].bodies)
        EXPECT_EQ(std::any_of(body.steps.begin(), body.steps.end(), reduces_over_data),
                  body.name == (stage == 0 ? "backward.0.last" : "reduce") ||
                      (body.name == "update" && (stage == 0 || stage == 3)))  // the table that both ends hold
            << stage << ": " << body.name;
    const auto last = std::find_if(stages[0].bodies.begin(), stages[0].bodies.end(),
                                   [](const Body& body) { return body.name == "backward.0.last"; });
    ASSERT_NE(last, stages[0].bodies.end());
    const auto first_reduction = std::find_if(last->steps.begin(), last->steps.end(), reduces_over_data);
    EXPECT_TRUE(std::any_of(first_reduction, last->steps.end(),
                            [](const Step& step) { return std::holds_alternative<Compute>(step.op); }));
  }
}

// Gradients that each micro-batch reduces would need memory until the last message has left.
TEST(Stages, GradientsOfEachMicroBatchAreReducedInItsBackward) {
  for (const Program& p : data_parallel_stages(4, ScheduleKind::k1f1b, 2, DType::kF32))
    for (const Body& body : p.bodies)
      EXPECT_EQ(body.name.starts_with("backward."), std::any_of(body.steps.begin(), body.steps.end(),
                                                                [](const Step& step) {
                                                                  const auto* scatter =
                                                                      std::get_if<ReduceScatter>(&step.op);
                                                                  return scatter && scatter->axis == Axis::kShard;
                                                                }))
          << body.name;
}

}  // namespace
}  // namespace molen::program
