// Broken pipelines: the stages that a wrong pass would make. `verify` must refuse errors that one stage alone shows.
// `verify_world` must refuse errors that only two stages together show. The mutants are not run, because a stage that
// never gets its message would wait forever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "program/build/build.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Program;
using program::rewritten;
using program::ScheduleKind;

Layout staged(ScheduleKind kind, int chunks, int shards = 1, int zero = 0) {
  Layout l{shards, zero, false, 3};
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}
const Layout kHalves = staged(ScheduleKind::kZbH1, 1), kHalvesGrads = staged(ScheduleKind::kZbH1, 1, 2, 2),
             kTurn = staged(ScheduleKind::kZbV, 2);
const Layout kOrder = staged(ScheduleKind::k1f1b, 1), kChunks = staged(ScheduleKind::kInterleaved, 2),
             kStagedGrads = staged(ScheduleKind::k1f1b, 1, 2, 2), kStagedOwn = staged(ScheduleKind::k1f1b, 1, 2, 1);

Layout of_three() {
  Layout l = staged(ScheduleKind::k1f1b, 1);
  l.stages = 3;
  return l;
}
const Layout kThree = of_three();

struct PipelineMutant {
  std::string name;
  Layout layout;
  int stage;
  std::function<Program(const Program&)> broken;
};

int body_of(const Program& p, const std::string& name) {
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    if (p.bodies[b].name == name) return static_cast<int>(b);
  throw Error("no body {}", name);
}

// Finds the n-th instance of a body in the schedule.
std::size_t instance_of(const Program& p, const std::string& body, int n = 0) {
  const int b = body_of(p, body);
  for (std::size_t i = 0; i < p.schedule.size(); ++i)
    if (p.schedule[i].body == b && n-- == 0) return i;
  throw Error("no instance of {}", body);
}

auto body_dropped(std::string body, int n = 0) {
  return [=](const Program& p) {
    Program q = p;
    q.schedule.erase(q.schedule.begin() + static_cast<std::ptrdiff_t>(instance_of(p, body, n)));
    return q;
  };
}
auto body_doubled(std::string body, int n = 0) {
  return [=](const Program& p) {
    Program q = p;
    const auto i = instance_of(p, body, n);
    q.schedule.insert(q.schedule.begin() + static_cast<std::ptrdiff_t>(i), p.schedule[i]);
    return q;
  };
}
auto swapped(std::string a, int n, std::string b, int m) {
  return [=](const Program& p) {
    Program q = p;
    std::swap(q.schedule[instance_of(p, a, n)], q.schedule[instance_of(p, b, m)]);
    return program::pass::order_streams(q);
  };
}
auto other_micro_batch(std::string body, int n, std::int64_t micro_batch) {
  return [=](const Program& p) {
    Program q = p;
    q.schedule[instance_of(p, body, n)].micro_batch = micro_batch;
    return q;
  };
}
// Moves a step of one body to another place; all edges are computed anew.
auto body_moved(std::string from, std::string kind, std::string to, std::string before) {
  return [=](const Program& p) {
    Program q = p;
    const auto place = [&](const std::string& body, const std::string& wanted) {
      const auto& steps = q.bodies[static_cast<std::size_t>(body_of(p, body))].steps;
      for (std::size_t k = 0; k < steps.size(); ++k)
        if (program::kind_of(steps[k].op) == wanted) return k;
      throw Error("no {} in {}", wanted, body);
    };
    auto& source = q.bodies[static_cast<std::size_t>(body_of(p, from))].steps;
    const auto k = static_cast<std::ptrdiff_t>(place(from, kind));
    const auto step = source[static_cast<std::size_t>(k)];
    if (kind != "zero_fill") source.erase(source.begin() + k);
    auto& target = q.bodies[static_cast<std::size_t>(body_of(p, to))].steps;
    target.insert(target.begin() + static_cast<std::ptrdiff_t>(place(to, before)), step);
    for (auto& body : q.bodies)
      for (auto& s : body.steps) s.after.clear();
    return program::pass::order_streams(q);
  };
}
auto without_op(std::string body, std::string kind) {
  return [=](const Program& p) {
    const auto b = static_cast<std::size_t>(body_of(p, body));
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (program::kind_of(p.bodies[b].steps[k].op) == kind) return program::without(p, b, k);
    throw Error("no {} in {}", kind, body);
  };
}

// The model has five layers. They form global stages of 3 and 2 layers, or of 2, 1, 1 and 1.
std::vector<PipelineMutant> pipeline_mutants() {
  return {
      {"a dropped send", kOrder, 0, body_dropped("send.x.3", 1)},
      {"a dropped receive", kOrder, 1, body_dropped("receive.x.3", 1)},
      {"a send twice", kOrder, 0, body_doubled("send.x.3", 1)},
      {"a receive twice", kOrder, 1, body_doubled("receive.x.3", 1)},
      {"a gradient that is not sent back", kOrder, 1, body_dropped("send.d_x.3", 2)},
      {"a send to oneself", kOrder, 0, rewritten({"send peer=1"}, "peer=1", "peer=0")},
      {"another layer's input sent", kOrder, 0, rewritten({"send peer=1"}, "reads=from:x.3", "reads=from:x.2")},
      {"a message of another layer", kOrder, 0, rewritten({"send peer=1"}, "layer=3", "layer=2")},
      {"swapped sends", kOrder, 0, swapped("send.x.3", 0, "send.x.3", 1)},
      {"swapped receives", kOrder, 1, swapped("receive.x.3", 0, "receive.x.3", 1)},
      {"sends and receives in another order than the other stage's", kOrder, 0,
       swapped("send.x.3", 2, "receive.d_x.3", 0)},
      {"one micro-batch's input for another", kOrder, 1, other_micro_batch("receive.x.3", 1, 2)},
      {"a forward before its input", kOrder, 1, swapped("forward.1", 0, "receive.x.3", 0)},
      {"a backward before its gradient", kOrder, 0, swapped("backward.0.first", 0, "receive.d_x.3", 0)},
      {"a forward that is left out", kOrder, 1, body_dropped("forward.1", 2)},
      {"a backward that is left out", kOrder, 0, body_dropped("backward.0.middle", 1)},
      {"a backward twice", kOrder, 0, body_doubled("backward.0.middle", 1)},
      {"the first backward in the middle", kOrder, 0, swapped("backward.0.first", 0, "backward.0.middle", 0)},
      {"activations that end with their instance", kOrder, 0, rewritten({"buffer qkv.1 "}, "micro_batch", "transient")},
      {"tokens counted at both ends", kOrder, 0, rewritten({"load_batch counts_tokens=0"}, " counts_tokens=0", "")},
      {"losses of the stage that has none", kOrder, 0, without_op("update", "reduce_scalars")},
      {"a norm of one stage", kOrder, 1,
       [](const Program& p) {
         return program::pass::costs(rewritten({"reduce_scalars axis=pp"}, "count=3", "count=2")(p));
       }},
      {"a table that each end updates by its share", kOrder, 1, without_op("update", "all_reduce")},
      {"a table that one end alone sums", kOrder, 0, without_op("update", "all_reduce")},
      {"the table's sum over all stages", kOrder, 0,
       rewritten({"all_reduce axis=embedding"}, "axis=embedding", "axis=pp")},
      {"a table counted at both ends", kOrder, 1,
       [](const Program& p) {
         Program q = p;
         auto& steps = q.bodies[static_cast<std::size_t>(body_of(p, "update"))].steps;
         for (std::size_t k = 0; k < steps.size(); ++k)
           if (program::kind_of(steps[k].op) == "sum_squares") {
             auto step = steps[k];
             step.operand(program::Arg::kGrad).buffer = p.buffer("grad.embed");
             steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(k), step);
             break;
           }
         for (auto& body : q.bodies)
           for (auto& s : body.steps) s.after.clear();
         return program::pass::order_streams(program::pass::costs(q));
       }},
      {"the ends' shares after the data-parallel sum", kStagedOwn, 0,
       [](const Program& p) {
         Program q = p;
         auto& steps = q.bodies[static_cast<std::size_t>(body_of(p, "update"))].steps;
         std::swap(steps.at(0), steps.at(1));
         for (auto& body : q.bodies)
           for (auto& s : body.steps) s.after.clear();
         return program::pass::order_streams(q);
       }},
      {"a chunk's gradient in the other's place", kChunks, 0,
       rewritten({"receive peer=1 payload=d_x layer=4"}, "writes=to:d_x/1", "writes=to:d_x")},
      {"the chunks the wrong way round", kChunks, 0, swapped("forward.0", 0, "forward.2", 0)},
      {"sums cleared a second time, on a stage that loads nothing", kThree, 1,
       body_moved("begin", "zero_fill", "update", "clip_scale")},
      {"a norm that leaves the last micro-batch out", kThree, 1,
       body_moved("update", "sum_squares", "backward.1.last", "backward down")},
      {"weights before the input's half", kHalves, 0, swapped("input.0.middle", 0, "weights.0.middle", 0)},
      {"weights that are left out", kHalves, 1, body_dropped("weights.1.middle", 0)},
      {"one layer's weights that are left out", kHalves, 0, without_op("weights.0.middle", "backward_weights down")},
      {"weights twice", kHalves, 1, body_doubled("weights.1.middle", 0)},
      {"weights that overwrite", kHalves, 0,
       [](const Program& p) {
         return program::accessed(p, {"backward_weights part=norm_up layer=1"}, program::Arg::kGrad,
                                  program::Access::kWrite);
       }},
      {"a gradient that begins with anything", kHalves, 0, without_op("input.0.first", "zero_fill")},
      {"the residual gradient in one place", kHalves, 0,
       rewritten({"backward_input part=norm_up layer=1"}, "writes=d_x:d_mid.1", "writes=d_x:d_x.2")},
      {"weights from another layer's gradient", kHalves, 1,
       rewritten({"backward_weights part=down layer=4"}, "reads=d_y:d_x.5", "reads=d_y:d_x.4")},
      {"a half that reduces what nobody wrote", kHalvesGrads, 0, without_op("weights.0.middle", "zero_fill")},
      {"a table cleared between its two contributions", kTurn, 0,
       [](const Program& p) {
         Program q = p;
         const auto head = static_cast<std::size_t>(body_of(p, "input.3.first")),
                    embed = static_cast<std::size_t>(body_of(p, "input.0.first"));
         for (const auto& step : p.bodies[head].steps)
           if (step.operands.size() == 1 && step.operands[0].access == program::Access::kWrite &&
               step.operands[0].buffer == p.find_buffer("grad.embed")) {
             q.bodies[embed].steps.insert(q.bodies[embed].steps.begin(), step);
             break;
           }
         for (auto& body : q.bodies)
           for (auto& s : body.steps) s.after.clear();
         return program::pass::order_streams(q);
       }},
      {"a micro-batch that is not reduced", kStagedGrads, 0, without_op("backward.0.first", "reduce_scatter")},
  };
}

TEST(PipelineMutants, AreRefusedEveryOne) {
  auto a = llama(true);
  a.layers = 5;
  int alone = 0, beside = 0;
  for (const PipelineMutant& m : pipeline_mutants()) {
    SCOPED_TRACE(m.name);
    auto stages = program::build_stages(a, setting_of(m.layout, DType::kF64));
    for (const auto& p : stages) ASSERT_TRUE(program::verify(p).empty());
    ASSERT_TRUE(program::verify_world(stages).empty());
    auto& stage = stages[static_cast<std::size_t>(m.stage)];
    const Program broken = m.broken(stage);
    ASSERT_FALSE(broken == stage);
    stage = broken;
    for (Program& p : stages) p = program::without_setting(std::move(p));
    const auto own = program::verify(stage), world = program::verify_world(stages);
    EXPECT_TRUE(!own.empty() || !world.empty());
    alone += !own.empty();
    beside += !world.empty();
    fmt::print("{:<60} {}\n", m.name, !own.empty() ? own[0].text : world.empty() ? "-" : world[0].text);
  }
  fmt::print("{} mutants: {} refused alone, {} beside the other stage\n", pipeline_mutants().size(), alone, beside);
}

}  // namespace
}  // namespace molen::prove
