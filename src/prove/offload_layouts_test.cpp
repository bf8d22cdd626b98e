// Tests that offloading changes no number: optimizer states, gradients and parameters on the host, in the layouts of
// data-parallel, tensor, pipeline and context ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include "program/ir/timeline.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Offload;
using program::Program;

Layout pipelined(Layout l, program::ScheduleKind kind) {
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, kind == program::ScheduleKind::kInterleaved ? 2 : 1);
  return l;
}
Layout tensor(Layout l, bool rows) {
  l.tensor = 2;
  l.rows = rows;
  return l;
}
Layout with_context(Layout l, program::ContextForm form) {
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  return l;
}

std::vector<Program> deepened_stages(arch::Architecture a, const program::Setting& s) {
  a.layers = std::max<std::int64_t>(a.layers, s.stages() * s.pipeline.chunks);
  return proved_stages(a, s);
}

arch::Architecture of_layout(arch::Architecture a, const Layout& l) {
  a.layers = std::max<std::int64_t>(a.layers, l.stages * l.pipeline.chunks);
  // The values of the last layer are not offloaded, so the model needs more layers.
  if (l.offload.activations) a.layers = std::max<std::int64_t>(4, 2 * l.stages * l.pipeline.chunks);
  return a;
}

class OffloadLayouts : public ::testing::TestWithParam<Layout> {
 protected:
  // When the two ends of a pipeline share a tied table, they sum its gradient on the device.
  static std::vector<arch::Architecture> models() {
    std::vector<arch::Architecture> of{llama(false), gpt()};
    const bool apart = GetParam().stages > 1 && GetParam().pipeline.placement != program::Placement::kV;
    of.back().tied = !(apart && GetParam().offload.gradients);
    of.back().heads = of.back().kv_heads = 6;  // so that two tensor ranks can share the heads
    of.back().head_dim = 5;
    for (auto& a : of) a = of_layout(a, GetParam());
    return of;
  }
};

TEST_P(OffloadLayouts, SameModelInDouble) {
  for (const auto& a : models()) {
    SCOPED_TRACE(arch::name_of(a.family));
    const Outcome& one =
        train_alone(program::build(a, reference_setting(DType::kF64, GetParam().sequence)), proof_steps());
    expect_same_model(one, train_threads(deepened_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps()));
  }
}

TEST_P(OffloadLayouts, OneStepWithinTheBound) {
  for (const auto compute : {DType::kF32, DType::kBF16}) {
    const auto a = models()[0];
    auto one = reference_setting(compute, GetParam().sequence), setting = setting_of(GetParam(), compute);
    if (compute == DType::kBF16) one.kernels = setting.kernels = arch::Kernels::kAten;
    SCOPED_TRACE(name_of(compute));
    const auto stages = deepened_stages(a, setting);
    const Outcome& reference = train_alone(program::build(a, one), 1);
    const Difference d = difference(reference, train_threads(stages, 1));
    const Bounds bounds =
        compute == DType::kF32
            ? bounds_of(stages.front())
            : bounds_beside(train_alone(program::build(a, reference_setting(DType::kF64, GetParam().sequence)), 1),
                            reference);
    ASSERT_LT(bounds.gradients, 0.25);  // a lost gradient is off by 1
    expect_within(d, bounds);
  }
}

// Offloaded optimizer states make the same sums in the same order, so they have the same bits as states on the device.
// Offloaded gradients are summed in another order than by a GEMM that adds to them.
TEST_P(OffloadLayouts, StatesOnTheHostChangeNoBit) {
  Layout there = GetParam(), here = there;
  there.offload.gradients = false;
  here.offload = {};
  for (const auto compute : {DType::kF32, DType::kBF16}) {
    auto on = setting_of(there, compute), off = setting_of(here, compute);
    if (compute == DType::kBF16) on.kernels = off.kernels = arch::Kernels::kAten;
    const auto a = models()[0];
    EXPECT_EQ(train_threads(deepened_stages(a, on), 3).hash, train_threads(deepened_stages(a, off), 3).hash)
        << name_of(compute);
  }
}

TEST_P(OffloadLayouts, SameLayoutTwiceIsIdenticalAndTheDeadAreDead) {
  const auto stages = deepened_stages(models()[1], setting_of(GetParam(), DType::kF32));
  expect_dead_buffers_unread(stages);
}

const Layout kOne{1, 0, false, 3};

INSTANTIATE_TEST_SUITE_P(
    Matrix, OffloadLayouts,
    ::testing::ValuesIn(
        suite::covering({on_host(kOptimizer, kOne),
                         on_host(kGradients, kOne),
                         on_host(kParameters, kOne),
                         on_host(kAll, kOne),
                         on_host(kOptimizer, {2, 0}),
                         on_host(kGradients, {2, 0, false, 2}),
                         on_host(kAll, {3, 0, true, 1}),
                         on_host(kOptimizer, {2, 1}),
                         on_host(kGradients, {3, 1, true, 2}),
                         on_host(kOptimizer, {2, 2, false, 2}),
                         on_host(kGradients, {3, 2, false, 1}),
                         on_host(kOptimizer, {2, 3, false, 3}),
                         on_host(kGradients, {2, 3, true, 1}),
                         on_host(kParameters, {3, 3, false, 2, 1, false, 0}),
                         on_host(kAll, {4, 3, false, 1, 1, false, 2}),
                         on_host(kOptimizer, {2, 1, false, 2, 2}),
                         on_host(kGradients, {2, 2, false, 1, 2}),
                         on_host(kAll, {2, 3, false, 2, 2}),
                         on_host(kOptimizer, {2, 3, false, 1, 2, true}),
                         on_host(kGradients, {2, 2, false, 1, 2, true}),
                         on_host(kGradients, tensor({2, 2, false, 2}, false)),
                         on_host(kAll, tensor({2, 3, true, 1}, true)),
                         on_host(kAll, tensor(kOne, false)),
                         on_host(kOptimizer, pipelined({1, 0, false, 2}, program::ScheduleKind::k1f1b)),
                         on_host(kGradients, pipelined({2, 1, false, 1}, program::ScheduleKind::kInterleaved)),
                         on_host(kGradients, pipelined({2, 2, false, 1}, program::ScheduleKind::kZbH1)),
                         on_host(kAll, pipelined({2, 3, true, 1}, program::ScheduleKind::k1f1b)),
                         on_host(kParameters, pipelined({1, 0, false, 2}, program::ScheduleKind::kZbV)),
                         on_host(kAll, with_context({1, 3, false, 2}, kGather)),
                         on_host(kGradients, with_context({2, 1}, kRing)),
                         on_host(kActivations, kOne),
                         on_host(kActivations, {2, 0, false, 2, 1, false, 0}),
                         on_host(kEverything, {3, 3, false, 1, 1, false, 2}),
                         on_host(kActivations, {2, 1, true, 3}),
                         on_host(kActivations, Layout{2, 2}.recomputing("norm_qkv,activation/2")),
                         on_host(kActivations, tensor(kOne, false)),
                         on_host(kEverything, tensor({2, 3, false, 1}, true)),
                         on_host(kActivations, pipelined({1, 0, false, 1}, program::ScheduleKind::kGpipe)),
                         on_host(kActivations, pipelined({2, 1, false, 1}, program::ScheduleKind::k1f1b)),
                         on_host(kActivations, pipelined({1, 0, true, 1}, program::ScheduleKind::kInterleaved)),
                         on_host(kActivations, pipelined({1, 0, false, 1}, program::ScheduleKind::kZbH1)),
                         on_host(kEverything, pipelined({1, 0, false, 1}, program::ScheduleKind::kZbV)),
                         on_host(kGradients, pipelined({2, 2, false, 1}, program::ScheduleKind::kZbV)),
                         on_host(kActivations, pipelined(tensor({1, 0, true, 1}, true), program::ScheduleKind::k1f1b)),
                         on_host(kActivations, pipelined(tensor(Layout{1, 0, false, 1}.recomputing("norm_up"), true),
                                                         program::ScheduleKind::kInterleaved)),
                         on_host(kActivations, with_context({2, 1, false, 2}, kGather)),
                         on_host(kActivations, with_context({1, 3}, kRing))})));

// Offloaded values take none of the device's memory, and the host's memory holds as much as the plan says.
TEST(Offload, LeavesTheDevice) {
  const auto a = llama(false);
  for (const Layout& l : {kOne, Layout{2, 0}, Layout{3, 1}, Layout{3, 2}, Layout{3, 3}, Layout{2, 3, false, 2, 2}})
    for (const Offload offload : {Offload{}, kOptimizer, kGradients, kParameters, kAll}) {
      if (offload.parameters && (l.zero == 1 || l.zero == 2)) continue;
      const Program p = program::build(a, setting_of(on_host(offload, l), DType::kBF16));
      const auto s = program::summarize(p, program::plan_memory(p));
      std::int64_t all = 0, kept = 0, updated = 0;
      for (const auto& unit : p.units) {
        const auto size = [&](program::Range range) {
          const auto [first, last] = program::unit_range(p.grid, {}, unit, range);
          return last - first;
        };
        all += unit.elements;
        kept += p.setting.sharded_parameters() ? size(program::Range::kShard) : unit.elements;
        updated += p.setting.owns_part() ? size(program::Range::kOwn) : unit.elements;
      }
      SCOPED_TRACE(program::sharding_text(p.setting));
      EXPECT_EQ(s.optimizer.value, offload.optimizer ? 0 : 12 * updated);
      EXPECT_EQ(s.parameters.value, offload.parameters ? 0 : 2 * kept);
      if (offload.gradients) {
        EXPECT_EQ(s.gradients.value, 0);
      } else {
        EXPECT_GT(s.gradients.value, 0);
      }
      // The host holds moments and masters, the gradient of the update, and parameters of the compute type; buffers
      // begin at multiples of 64 bytes.
      const std::int64_t host = offload.optimizer ? 16 * updated + 2 * (offload.parameters ? kept : updated) : 0;
      EXPECT_GE(s.host.value, host);
      EXPECT_LE(s.host.value, host + static_cast<std::int64_t>(p.units.size() * 6 * 64));
    }
}

TEST(Offload, PlannedIsMeasured) {
  Layout deep = on_host(kEverything, kOne);
  deep.sequence = 64;
  for (const Layout& l :
       {on_host(kAll, kOne), on_host(kOptimizer, {2, 2, false, 2}), on_host(kAll, {2, 3, true, 2}), deep}) {
    auto a = llama(false);
    if (l.sequence == 64) a.layers = 12;
    const Program p = program::build(a, setting_of(l, DType::kF32));
    const auto planned = program::plan_memory(p);
    if (l.sequence == 64) {
      EXPECT_GT(planned.host, planned.peak);
    }
    on_ranks(p.setting.ranks(), [&](comm::Communicator& world) {
      exec::Executor executor(p, world.rank(), &world, {});
      launch::initialize_parameters(executor, 1, 1);
      exec::StepInput input;
      input.load = [&](const exec::MicroBatch& to) {
        std::fill_n(to.ids, p.setting.tokens(), 3);
        std::fill_n(to.labels, p.setting.tokens(), 5);
        return p.setting.tokens();
      };
      executor.run(input);
      const auto& plan = executor.memory();
      std::int64_t peak = 0;
      for (std::size_t i = 0; i < executor.ops().size(); ++i) {
        const auto& e = executor.ops()[i];
        EXPECT_EQ(plan.high_water[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)],
                  executor.high_water()[i]);
        peak = std::max(peak, executor.high_water()[i]);
      }
      EXPECT_EQ(plan.peak.value, peak);
    });
  }
}

// The device holds the activations of a few layers, however many layers a model has; with a larger prefetch it holds
// more.
TEST(Offload, ActivationsOfAFewLayersAreOnTheDevice) {
  const auto transient = [](std::int64_t layers, bool offload, int prefetch, const std::string& recompute) {
    auto a = llama(false);
    a.layers = layers;
    Layout l = kOne;
    l.sequence = 64;
    l.prefetch = prefetch;
    l.recomputed = recompute;
    l.offload.activations = offload;
    const Program p = program::build(a, setting_of(l, DType::kF32));
    const auto plan = program::plan_memory(p);
    return std::pair((plan.peak - plan.persistent).value, plan.host.value);
  };
  for (const char* recompute : {"", "full"}) {
    const auto [six, host6] = transient(6, true, 1, recompute);
    const auto [twelve, host12] = transient(12, true, 1, recompute);
    const auto all6 = transient(6, false, 1, recompute).first, all12 = transient(12, false, 1, recompute).first;
    // Statistics, which stay on the device, are one or two values per token and layer.
    const std::int64_t small = 6 * 3 * 64 * (2 + 6) * 4 + 6 * 3 * 64;
    EXPECT_LE(twelve - six, small) << recompute;
    EXPECT_GT(all12 - all6, *recompute ? 6 * 3 * 64 * 30 * 4 - 64 : 8 * (twelve - six)) << recompute;
    EXPECT_LT(twelve, all12) << recompute;
    EXPECT_EQ(host12 * 5, host6 * 11) << recompute;  // all layers except the last
    EXPECT_GT(transient(12, true, 3, recompute).first, twelve) << recompute;
    fmt::print("12 layers, recompute {}: {} of activations on the device, {} with {} of them on the host\n",
               *recompute ? recompute : "none", human(Bytes(all12)), human(Bytes(twelve)), human(Bytes(host12)));
  }
}

// Each op is a sleep, and the model has sixteen equal units. Copies and the host's update run beside the device's work.
TEST(Offload, CopiesAndUpdatesRunBesideEachOther) {
  constexpr double kUnit = 24e-3;
  auto a = llama(false);
  a.layers = 14;
  for (const Offload offload : {kAll, kActivations, kEverything}) {
    const Program p = program::build(a, setting_of(on_host(offload, {1, 0, false, 12}), DType::kF64));
    const double copy = offload.activations ? kUnit / 20 : kUnit / 2;
    exec::Options options;
    options.sleep = [&](const program::Step& step) -> double {
      if (program::is_copy(step.op)) return copy;
      if (std::holds_alternative<program::OptimizerStep>(step.op)) return kUnit / 4;
      const auto* c = std::get_if<program::Compute>(&step.op);
      if (!c) return 0.0;
      if (c->layer >= 0) return kUnit / 6;
      if (c->part == arch::Part::kFinalNorm) return 0.0;
      return c->part == arch::Part::kHead ? 2 * kUnit / static_cast<double>(p.setting.head_chunks()) : kUnit;
    };
    exec::Executor executor(p, 0, nullptr, options);
    exec::StepInput input;
    input.load = [](const exec::MicroBatch&) { return std::int64_t{0}; };
    const auto result = executor.run(input);
    double compute = 0, copies = 0;
    for (std::size_t i = 0; i < executor.ops().size(); ++i) {
      const auto& step = *executor.ops()[i].step;
      (program::is_copy(step.op) ? copies : compute) += result.timeline.ops[i].seconds();
    }
    const auto phases = program::phase_seconds(p.setting, executor.ops(), result.timeline);
    EXPECT_GT(phases.phase_s[static_cast<std::size_t>(program::Phase::kOptimizer)], 15 * kUnit / 4);
    EXPECT_EQ(phases.bubble_s, 0.0);
    EXPECT_LT(phases.idle_s, 0.2 * result.timeline.total_s);
    const double hidden = 1.0 - std::max(0.0, result.timeline.total_s - compute) / copies;
    fmt::print("{:.2f} s of copies beside {:.2f} s of computation: {:.1f} % hidden\n", copies, compute, 100 * hidden);
    // Parameters are copied twice and gradients once; six values of each layer except the last are copied to the host
    // and back.
    EXPECT_GT(copies, ((offload.parameters ? 3 * 15 : 0) + (offload.activations ? 13 * 12 : 0)) * copy);
    EXPECT_GE(hidden, 0.8);
  }
}

TEST(Offload, CheckpointsMoveBetweenPlaces) {
  const auto a = llama(true);
  const std::vector<Layout> layouts{kOne, on_host(kOptimizer, {2, 1}), on_host(kAll, {3, 3}),
                                    on_host(kGradients, {2, 2})};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const fs::path dir = fs::temp_directory_path() / fmt::format("molen_offload_{}_{}", ::getpid(), i);
    fs::remove_all(dir);
    const std::string saved = hash_of_checkpoint(program::build(a, setting_of(layouts[i], DType::kF32)), dir, true);
    EXPECT_FALSE(saved.empty());
    for (const Layout& to : layouts)
      EXPECT_EQ(saved, hash_of_checkpoint(program::build(a, setting_of(to, DType::kF32)), dir, false));
    fs::remove_all(dir);
  }
}

}  // namespace
}  // namespace molen::prove
