// Tests what the place of reductions in a pipeline does to the time of a step. The builder puts them behind the
// messages of their stage (pass::reduce_gradients). The tests compare this with reductions in the backward that
// completes the gradients, where the messages behind them wait.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/schedule/schedule.h"
#include "program/verify/verify.h"
#include "sim/described_costs.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

using program::Program;
using program::ScheduleKind;

bool reduces_over_data(const program::Step& step) {
  const auto axis = program::axis_of(step.op);
  return step.phase == program::Phase::kGradientReduce && axis && stream_of(*axis) == program::Stream::kDpComm;
}

std::vector<Program> pipeline(ScheduleKind kind, int stages, int zero) {
  const int chunks = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
  auto a = arch::preset("llama-tiny");
  a.layers = 2 * stages * chunks;
  a.hidden = 512, a.ffn = 1536, a.heads = a.kv_heads = 8, a.head_dim = 64;
  a.tied = false;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  s.mesh[mesh::Axis::kDpReplicate] = 4;
  s.zero = zero;
  s.pipeline = program::pipeline_of(kind, chunks);
  s.global_batch = 4 * 2 * stages;
  s.sequence = 128;
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  return program::build_stages(a, s);
}

// Returns the place of the last op that writes a buffer before instance `before`, as the body and the op's index.
std::pair<std::size_t, std::size_t> last_writer(const Program& p, int buffer, std::size_t before) {
  for (std::size_t i = before; i-- > 0;) {
    const auto body = static_cast<std::size_t>(p.schedule[i].body);
    for (std::size_t k = p.bodies[body].steps.size(); k-- > 0;)
      for (const program::Use& use : p.bodies[body].steps[k].operands)
        if (use.buffer == buffer && use.writes()) return {body, k};
  }
  throw Error("no op writes buffer {}", buffer);
}

// Returns a stage whose reductions come directly behind the op that completes the gradient. The settings of these tests
// have no edges but those that order_streams finds.
Program reducing_at_once(Program p) {
  const auto found = std::find_if(p.schedule.begin(), p.schedule.end(), [&](const program::Instance& instance) {
    return p.bodies[static_cast<std::size_t>(instance.body)].name == "reduce";
  });
  if (found == p.schedule.end()) return p;
  const auto at = static_cast<std::size_t>(found - p.schedule.begin());
  const auto reduce = static_cast<std::size_t>(found->body);
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps) step.after.clear();
  for (const program::Step& step : p.bodies[reduce].steps) {
    const auto gradient = std::find_if(step.operands.begin(), step.operands.end(), [&](const program::Use& use) {
      return use.reads() && p.buffers[static_cast<std::size_t>(use.buffer)].role == program::Value::kGrad;
    });
    const auto [body, op] = last_writer(p, gradient->buffer, at);
    auto& steps = p.bodies[body].steps;
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(op + 1), step);
  }
  p.schedule.erase(p.schedule.begin() + static_cast<std::ptrdiff_t>(at));
  p.bodies.erase(p.bodies.begin() + static_cast<std::ptrdiff_t>(reduce));
  for (program::Instance& instance : p.schedule)
    if (instance.body > static_cast<int>(reduce)) --instance.body;
  return program::pass::order_streams(std::move(p));
}

std::vector<Program> reducing_at_once(std::vector<Program> stages) {
  for (Program& p : stages) p = reducing_at_once(std::move(p));
  return stages;
}

TEST(PipelineReductions, AStepIsNotLongerThanWithReductionsInFrontOfMessages) {
  cluster::Cluster slow = cluster::find("dgx-a100");
  for (auto& tier : slow.tiers) tier.bandwidth.value /= 20.0;
  const cluster::Cluster given = cluster::find("dgx-a100");
  for (const ScheduleKind kind : {ScheduleKind::k1f1b, ScheduleKind::kGpipe, ScheduleKind::kInterleaved})
    for (const int count : {2, 4})
      for (const int zero : {0, 1}) {
        SCOPED_TRACE(fmt::format("{}, {} stages, zero {}", name_of(kind), count, zero));
        const auto programs = pipeline(kind, count, zero);
        const auto earlier = reducing_at_once(programs);
        for (const Program& p : earlier)
          for (const auto& finding : program::verify(p)) ADD_FAILURE() << finding.text;
        const program::Stages behind(programs), at_once(earlier);
        const auto seconds = [](const program::Stages& stages, const cluster::Cluster& c) {
          return step_seconds(simulate(stages, DescribedCosts(c, Factors::shipped(), {})));
        };
        EXPECT_LE(seconds(behind, given), seconds(at_once, given));
        EXPECT_LT(seconds(behind, slow), 0.95 * seconds(at_once, slow));
      }
}

// In front of the messages, the reductions of all stages add up. The message of a stage waits for all of them, and the
// reductions of the next stage begin only after this message. Behind the messages, no reduction waits for one of
// another stage, so a step takes at most as much longer as the fullest stage reduces.
TEST(PipelineReductions, BehindTheMessagesTheLongestStageDecides) {
  CoreContention in_turn;
  in_turn.one_at_a_time = true;
  const auto step_with = [&](const program::Stages& stages, double reduction, std::vector<double>* reducing) {
    std::vector<std::vector<double>> work(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
      double all = 0.0;
      for (const auto& op : stages.ops(s)) {
        work[s].push_back(reduces_over_data(*op.step) ? reduction : 1.0);
        if (reduces_over_data(*op.step)) all += reduction;
      }
      if (reducing) reducing->push_back(all);
    }
    return step_seconds(simulate(stages, work, in_turn));
  };
  for (const ScheduleKind kind : program::kAllScheduleKinds)
    for (const int zero : {0, 1}) {
      SCOPED_TRACE(std::string(name_of(kind)));
      const auto programs = pipeline(kind, 4, zero);
      const program::Stages behind(programs), at_once(reducing_at_once(programs));
      std::vector<double> reducing;
      const double without = step_with(behind, 0.0, nullptr), with = step_with(behind, 1000.0, &reducing);
      const double fullest = *std::max_element(reducing.begin(), reducing.end());
      EXPECT_LE(with, without + fullest);
      if (kind != ScheduleKind::k1f1b && kind != ScheduleKind::kGpipe) continue;
      EXPECT_GE(step_with(at_once, 1000.0, nullptr), std::accumulate(reducing.begin(), reducing.end(), 0.0));
    }
}

}  // namespace
}  // namespace molen::sim
