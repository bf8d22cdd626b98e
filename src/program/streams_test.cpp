// Tests the streams of communication: which op runs on which stream, what a text may change, and that separate streams
// cost no memory.
#include <gtest/gtest.h>

#include <set>

#include "program/memory/memory.h"
#include "program/test_edit.h"
#include "program/values/signature.h"

namespace molen::program {
namespace {

struct Ranks {
  int shards = 1, replicas = 1, tensor = 1, context = 1, stages = 1, zero = 0;
  bool rows = false;
  std::int64_t pieces = 1;
  ContextForm form = ContextForm::kGather;
  DType reduce = DType::kF32;
  Offload offload{};
};

Setting several(const Ranks& r) {
  Setting s = setting_of(r.shards, r.zero, false, 4 * r.shards * r.replicas);
  s.sequence = 144;  // two and three context ranks divide it
  s.mesh[mesh::Axis::kDpReplicate] = r.replicas;
  s.mesh[mesh::Axis::kTp] = r.tensor;
  s.mesh[mesh::Axis::kCp] = r.context;
  s.mesh[mesh::Axis::kPp] = r.stages;
  if (r.stages > 1) s.pipeline = pipeline_of(ScheduleKind::k1f1b, 1);
  s.sequence_parallel = r.rows;
  s.tensor_chunks = r.pieces;
  s.context_form = r.form;
  s.reduce = r.reduce;
  s.offload = r.offload;
  return s;
}

// Layouts whose ranks communicate over more than one kind of axis.
std::vector<Ranks> several_axes() {
  constexpr auto kRing = ContextForm::kRing, kGather = ContextForm::kGather;
  std::vector<Ranks> all;
  for (const int zero : {0, 1, 2, 3}) {
    all.push_back({2, 1, 2, 1, 1, zero});
    all.push_back({2, 2, 2, 1, 1, zero, true});
    all.push_back({2, 1, 2, 1, 1, zero, true, 3});
    all.push_back({2, 1, 1, 2, 1, zero});
    all.push_back({2, 1, 1, 3, 1, zero, false, 1, kRing});
    all.push_back({2, 1, 2, 2, 1, zero, true, 1, kRing, DType::kBF16});
    all.push_back({2, 1, 2, 1, 1, zero, false, 1, kGather, DType::kBF16});
    all.push_back({2, 1, 2, 2, 3, zero, true});
  }
  all.push_back({2, 1, 2, 1, 1, 3, true, 1, kGather, DType::kF32, {true, true, true, true}});
  all.push_back({2, 1, 2, 2, 1, 2, false, 1, kGather, DType::kBF16, {true, true, false, false}});
  return all;
}

std::vector<Program> programs_of(const Ranks& r) {
  return build_stages(tiny(true), several(r));
}

// Returns the program with all communication on one stream.
Program on_one_stream(Program p) {
  for (Body& body : p.bodies)
    for (Step& step : body.steps)
      if (communicates(step.stream)) step.stream = Stream::kDpComm;
  return p;
}

TEST(CommStreams, AreOfTheAxes) {
  for (const Ranks& r : several_axes())
    for (const Program& p : programs_of(r)) {
      std::set<Stream> used;
      for (const Body& body : p.bodies)
        for (const Step& step : body.steps)
          if (const auto axis = axis_of(step.op)) {
            used.insert(step.stream);
            const bool tensor = *axis == Axis::kTp, context = *axis == Axis::kCp,
                       stages = *axis == Axis::kPp || *axis == Axis::kEmbedding;
            EXPECT_EQ(step.stream, tensor    ? Stream::kTpComm
                                   : context ? Stream::kCpComm
                                   : stages  ? Stream::kPpComm
                                             : Stream::kDpComm)
                << kind_of(step.op) << " " << name_of(*axis);
          }
      EXPECT_EQ(used.size(), 1U + (r.tensor > 1) + (r.context > 1) + (r.stages > 1));
    }
}

// Returns whether some communication waits for communication on another stream with which it shares no buffer.
bool waits_for_memory(const Program& p) {
  const auto share = [](const Step& a, const Step& b) {
    for (const Use& x : a.operands)
      for (const Use& y : b.operands)
        if (x.buffer == y.buffer) return true;
    return false;
  };
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps)
      for (const OpRef& ref : step.after) {
        if (ref.body >= 0 || !communicates(step.stream)) continue;
        const Step& before = body.steps[static_cast<std::size_t>(ref.op)];
        if (communicates(before.stream) && !share(step, before)) return true;
      }
  return false;
}

// Streams that run freely keep no more memory in use than one stream would. A program with one stream is still sound.
TEST(CommStreams, CostNoMemory) {
  int all = 0, bound = 0;  // all programs, and those in which communication waits to keep the peak
  for (const Ranks& r : several_axes())
    for (const Program& p : programs_of(r)) {
      SCOPED_TRACE(sharding_text(p.setting));
      ASSERT_TRUE(verify(p).empty()) << verify(p)[0].text;
      const Program one = on_one_stream(p);
      EXPECT_TRUE(verify(one).empty()) << verify(one)[0].text;
      const PlannedPeak free = planned_peak(p), single = planned_peak(one);
      EXPECT_LE(free.device.value, single.device.value);
      EXPECT_EQ(free.host.value, single.host.value);
      ++all;
      bound += waits_for_memory(p);
    }
  EXPECT_LT(bound, all) << "no program is free of such waits";
  fmt::print("communication waits for communication for the memory's sake in {} of {} programs\n", bound, all);
}

std::string findings_text(const Program& p) {
  std::string text;
  for (const Finding& finding : verify(p)) text += finding.text + "\n";
  return text;
}

// Tensor ranks sum the gradients of norms beside the backward. If a text moves such a sum to another stream, the sum is
// no longer ordered with the exchanges of the next layer unless edges keep the order.
TEST(CommStreams, AnOpMovesOnlyWithItsOrder) {
  const Program p = build(tiny(), several(Ranks{2, 1, 2, 1, 1, 1}));
  std::size_t moved = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const auto* sum = std::get_if<AllReduce>(&p.bodies[b].steps[k].op);
      if (!sum || sum->axis != Axis::kTp || sum->payload != Payload::kUnit) continue;
      Program q = p;
      q.bodies[b].steps[k].stream = Stream::kCpComm;
      const std::string why = findings_text(q);
      EXPECT_NE(why.find("which communicates over the same axis, tp, on another stream"), std::string::npos) << why;
      EXPECT_NE(why.find(fmt::format("body {}, op %", p.bodies[b].name)), std::string::npos) << why;
      const Program ordered = pass::order_streams(q);
      EXPECT_EQ(findings_text(ordered), "");
      EXPECT_EQ(parse(print(ordered), "moved"), ordered);
      ++moved;
    }
  EXPECT_GE(moved, 3U);
}

TEST(CommStreams, OtherStreamsAreRefused) {
  const Program p = build(tiny(), several(Ranks{2, 1, 2, 1, 1, 1}));
  for (std::size_t k = 0; k < p.bodies[0].steps.size(); ++k) {
    const Step& step = p.bodies[0].steps[k];
    for (const Stream stream : kAllStreams) {
      if (stream == step.stream || (communicates(stream) && communicates(step.stream))) continue;
      Program q = p;
      q.bodies[0].steps[k].stream = stream;
      const std::string why = findings_text(q);
      EXPECT_NE(why.find(fmt::format("op %{} ", k)), std::string::npos) << why;
      EXPECT_NE(why.find(fmt::format("belongs on the stream {}", name_of(step.stream))), std::string::npos) << why;
      EXPECT_NE(why.find(fmt::format(", not on {}", name_of(stream))), std::string::npos) << why;
    }
  }
}

// Whatever the edges and streams are, an op waits only for ops before it in the list. All ranks can therefore run in
// list order, and no ranks wait for each other in a circle.
TEST(CommStreams, EveryWaitIsForAnEarlierOp) {
  for (const Ranks& r : several_axes())
    for (const Program& p : programs_of(r)) {
      const auto ops = expand(p);
      for (std::size_t i = 0; i < ops.size(); ++i)
        for (const int before : ops[i].after) ASSERT_LT(before, static_cast<int>(i));
      const auto turn = communication_before(ops);
      int latest = -1;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        ASSERT_EQ(turn[i], is_communication(ops[i].step->op) ? latest : -1);
        if (is_communication(ops[i].step->op)) latest = static_cast<int>(i);
      }
    }
}

}  // namespace
}  // namespace molen::program
