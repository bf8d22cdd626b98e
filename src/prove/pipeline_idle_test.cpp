// Tests how long the stages of a pipeline are idle. Computation is a sleep, and messages are real. Forward, backward of
// the input and backward of the weights take equally long.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program/build/build.h"
#include "program/schedule/schedule.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Compute;
using program::Pass;
using program::ScheduleKind;

// A chunk is one layer; its `down` takes the time of the whole layer: `chunk_s` for the forward and for each half of
// the backward.
std::optional<double> idle_seconds(const program::Step& step, double chunk_s) {
  if (program::is_communication(step.op)) return std::nullopt;
  const auto* c = std::get_if<Compute>(&step.op);
  if (!c || c->part != arch::Part::kDown) return 0.0;
  return c->pass == Pass::kBackward ? 2 * chunk_s : chunk_s;
}

struct Measured {
  double idle = 0.0, step_s = 0.0;
};

// Measures from the step's start to the opening of the clip barrier, over all stages.
Measured measure(ScheduleKind kind, int stages, int micro_batches, double chunk_s) {
  const int chunks = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
  auto a = llama(false);
  a.layers = stages * chunks;
  Layout l;
  l.stages = stages;
  l.pipeline = program::pipeline_of(kind, chunks);
  program::Setting s = setting_of(l, DType::kF64);
  s.micro_batch = 1;
  s.global_batch = micro_batches;
  const auto programs = program::build_stages(a, s);
  std::vector<double> busy(programs.size()), end(programs.size());
  on_ranks(stages, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    bool warm = false;  // the first step only warms up, so its ops do not sleep
    exec::Options options;
    options.sleep = [&](const program::Step& step) {
      const auto pause = idle_seconds(step, chunk_s);
      return pause && !warm ? 0.0 : pause;
    };
    exec::Executor executor(programs[r], world.rank(), &world, options);
    exec::StepInput input;
    input.load = [](const exec::MicroBatch&) { return std::int64_t{1}; };
    executor.run(input);
    world.barrier();
    warm = true;
    const auto result = executor.run(input);
    for (std::size_t i = 0; i < executor.ops().size(); ++i) {
      const auto& time = result.timeline.ops[i];
      const auto& step = *executor.ops()[i].step;
      if (std::holds_alternative<Compute>(step.op)) busy[r] += time.seconds();
      if (std::holds_alternative<program::ClipScale>(step.op)) end[r] = time.start_s;
    }
  });
  const double last = *std::max_element(end.begin(), end.end());
  double all = 0.0;
  for (const double b : busy) all += b;
  return {1.0 - all / (last * stages), last};
}

TEST(PipelineIdle, IsWhatTheFormulasSay) {
  constexpr double kChunk = 20e-3, kBound = 0.02;
  for (const int stages : {2, 4}) {
    const int m = 2 * stages;
    double zb_h1 = 0.0;
    for (const ScheduleKind kind : program::kAllScheduleKinds) {
      const int chunks = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
      const double ideal = program::ideal_idle_share(kind, stages, chunks, m);
      // The executor's own time and late wake-ups lengthen the idle time. They grow with the other work on this
      // machine, but not with the sleeps, while a wrong order costs a share of the sleeps. So each repetition sleeps
      // for twice as long: only the wrong order stays.
      Measured best = measure(kind, stages, m, kChunk);
      for (int times = 2; times <= 16 && std::abs(best.idle - ideal) > kBound; times *= 2)
        best = measure(kind, stages, m, times * kChunk);
      fmt::print("{} stages, {} micro-batches, {:<12} idle {:5.2f} %, formula {:5.2f} %, step {:.3f} s\n", stages, m,
                 name_of(kind), 100 * best.idle, 100 * ideal, best.step_s);
      EXPECT_NEAR(best.idle, ideal, kBound) << name_of(kind);
      if (kind == ScheduleKind::kZbH1) zb_h1 = best.idle;
      if (kind == ScheduleKind::kZbV) {
        EXPECT_LT(best.idle, zb_h1);
      }
    }
  }
}

}  // namespace
}  // namespace molen::prove
