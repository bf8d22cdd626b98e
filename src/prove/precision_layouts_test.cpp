// Tests narrow types on many ranks. With fp16 and a loss scale, and with gradients that travel in 16 bits, every layout
// computes the same model. A step whose gradient overflows anywhere is skipped everywhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "optim/loss_scale.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

program::Setting narrow(program::Setting s, DType compute) {
  s.compute = compute;
  s.master = s.reduce = DType::kF32;
  s.kernels = arch::Kernels::kAten;
  return s;
}

program::Setting alone(const Layout& l, DType compute) {
  Layout one{1, 0, false, 3};
  one.sequence = l.sequence;
  const program::Setting s = setting_of(one, compute);
  return compute == DType::kF64 ? s : narrow(s, compute);
}

Layout tensor_ranks(bool rows, int shards = 1, int zero = 0) {
  Layout l{shards, zero};
  l.tensor = 2;
  l.rows = rows;
  return l;
}
Layout pipeline_layout(program::ScheduleKind kind, int shards = 1, int zero = 0) {
  Layout l{shards, zero, false, 3};
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, 1);
  return l;
}
Layout context_pieces(program::ContextForm form, int shards = 1, int zero = 0) {
  Layout l{shards, zero};
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  return l;
}

class HalfLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(HalfLayouts, OneStepWithinTheBound) {
  for (const auto& a : {llama(true), gpt()}) {
    if (GetParam().tensor > 1 && a.heads % GetParam().tensor != 0) continue;
    SCOPED_TRACE(arch::name_of(a.family));
    const Outcome& exact = train_alone(program::build(a, alone(GetParam(), DType::kF64)), 1);
    const Outcome& rounded = train_alone(program::build(a, alone(GetParam(), DType::kF16)), 1);
    const Bounds bounds = bounds_beside(exact, rounded);
    ASSERT_LT(bounds.gradients, 0.05);  // a gradient that is lost, or not scaled back, is off by 1 or more
    const auto stages = proved_stages(a, narrow(setting_of(GetParam(), DType::kF32), DType::kF16));
    const Difference d = difference(rounded, train_threads(stages, 1));
    expect_within(d, bounds);
  }
}

TEST_P(HalfLayouts, TwiceTheSameAndTheDeadAreDead) {
  const auto stages = proved_stages(llama(true), narrow(setting_of(GetParam(), DType::kF32), DType::kF16));
  const Outcome once = train_threads(stages, 3);
  EXPECT_EQ(once.hash, train_threads(stages, 3, {at::kCPU, true}).hash);
  EXPECT_LT(once.losses.back(), once.losses.front()) << "it does not learn";
}

constexpr auto k1f1b = program::ScheduleKind::k1f1b, kZbH1 = program::ScheduleKind::kZbH1;

INSTANTIATE_TEST_SUITE_P(Some, HalfLayouts,
                         ::testing::ValuesIn(suite::covering({Layout{2, 0}, Layout{2, 1, false, 3},
                                                              Layout{3, 3, true, 2}, Layout{2, 3, false, 3, 2, true},
                                                              tensor_ranks(false), tensor_ranks(true, 2, 2),
                                                              pipeline_layout(k1f1b), pipeline_layout(kZbH1, 2, 1),
                                                              context_pieces(kGather, 2, 3), context_pieces(kRing)})));

// --- messages

// Returns a setting in which gradients are kept in fp32 and travel in `reduce`.
program::Setting travelling(const Layout& l, DType compute, DType reduce) {
  program::Setting s = setting_of(l, DType::kF32);
  if (compute != DType::kF32) s = narrow(s, compute);
  s.reduce = reduce;
  return s;
}

class NarrowMessages : public ::testing::TestWithParam<Layout> {};

// A gradient that travels in a 16-bit type is rounded when it leaves a rank and after it is summed. That is about as
// often as in a backward in that type, so the distance of such a backward from fp64 gives the bound. The proof checks
// memory and payload against the plan.
TEST_P(NarrowMessages, OneStepWithinTheBound) {
  const auto a = llama(true);
  const Outcome& exact = train_alone(program::build(a, alone(GetParam(), DType::kF64)), 1);
  for (const DType reduce : {DType::kBF16, DType::kF16})
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(fmt::format("{} in {}", name_of(compute), name_of(reduce)));
      const auto one = compute == DType::kF32 ? [&] {
        Layout l{1, 0, false, 3};
        l.sequence = GetParam().sequence;
        return setting_of(l, DType::kF32);
      }() : alone(GetParam(), compute);
      const Outcome& reference = train_alone(program::build(a, one), 1);
      const DType coarser = compute == DType::kBF16 ? compute : reduce;
      const Bounds bounds = bounds_beside(exact, train_alone(program::build(a, alone(GetParam(), coarser)), 1));
      ASSERT_LT(bounds.gradients, 0.25);  // a lost gradient is off by 1
      const Outcome many = train_threads(proved_stages(a, travelling(GetParam(), compute, reduce)), 1);
      const Difference d = difference(reference, many);
      expect_within(d, bounds);
      // Checks that gradients did travel in `reduce`: fp32 alone would not differ by as much.
      if (compute == DType::kF32) {
        const Outcome wide = train_threads(proved_stages(a, travelling(GetParam(), compute, DType::kF32)), 1);
        EXPECT_GT(difference(wide, many).gradients, unit_roundoff(reduce) / 4);
      }
    }
}

TEST_P(NarrowMessages, TwiceTheSameAndTheDeadAreDead) {
  const auto stages = proved_stages(llama(true), travelling(GetParam(), DType::kBF16, DType::kBF16));
  const Outcome once = train_threads(stages, 3);
  EXPECT_EQ(once.hash, train_threads(stages, 3, {at::kCPU, true}).hash);
  EXPECT_LT(once.losses.back(), once.losses.front()) << "it does not learn";
}

INSTANTIATE_TEST_SUITE_P(Some, NarrowMessages,
                         ::testing::ValuesIn(suite::covering(
                             {Layout{2, 0}, Layout{3, 1, false, 1}, Layout{4, 2, true, 1}, Layout{3, 3, false, 2},
                              Layout{2, 1, false, 2, 2}, Layout{2, 2, false, 3, 2}, Layout{2, 3, false, 1, 2, true},
                              tensor_ranks(false, 2, 0), tensor_ranks(true, 2, 2), pipeline_layout(k1f1b, 2, 0),
                              pipeline_layout(k1f1b, 2, 3), pipeline_layout(kZbH1, 2, 2), context_pieces(kGather),
                              context_pieces(kRing, 2, 3), on_host(kGradients, Layout{2, 1, false, 3}),
                              on_host(kAll, Layout{2, 3, false, 3, 2})})));

// A message with more elements than a sum widens at once: each block must land in its own place.
TEST(Messages, OfLargeUnitsAreAddedBlockByBlock) {
  auto a = llama(true);
  a.hidden = 240, a.ffn = 1000;
  const Layout l{2, 2, false, 1};
  const auto stages = proved_stages(a, travelling(l, DType::kF32, DType::kBF16));
  std::int64_t widened = 0;
  for (const auto& body : stages[0].bodies)
    for (const auto& step : body.steps)
      if (std::holds_alternative<program::Cast>(step.op) && step.updates(program::Arg::kTo))
        widened = std::max(widened, step.scratch.value / size_of(DType::kF32));
  ASSERT_EQ(widened, arch::kWidenBlock);
  ASSERT_GT(3 * a.hidden * a.ffn / l.shards, widened + widened / 4);
  const Outcome wide = train_threads(proved_stages(a, travelling(l, DType::kF32, DType::kF32)), 1);
  const Difference d = difference(wide, train_threads(stages, 1));
  EXPECT_LT(d.gradients, 16 * unit_roundoff(DType::kBF16)) << d.worst_gradient;  // a lost block is off by far more
}

// --- the scale

Outcome train_scaled(const program::Program& p, double loss_scale) {
  Trial trial;
  trial.steps = 1;
  trial.loss_scale = loss_scale;
  return prove(p, *comm::make_self(), synthetic_samples(p.setting, p.arch.vocabulary), trial);
}

// Gradients and norm are those of the unscaled loss, for any scale within the range of fp16. The scale here is not a
// power of two, so its products round once more.
TEST(LossScaling, LeavesNoTraceInGradientAndNorm) {
  const auto a = llama(false);
  const Outcome& exact = train_alone(program::build(a, alone({}, DType::kF64)), 1);
  const program::Program p = program::build(a, alone({}, DType::kF16));
  const Outcome& rounded = train_alone(p, 1);
  const Bounds bounds = bounds_beside(exact, rounded);
  for (const double scale : {64.0, 1000.0, 16384.0}) {
    const Difference d = difference(rounded, train_scaled(p, scale));
    EXPECT_EQ(d.loss, 0.0) << scale;
    EXPECT_LE(d.norm, bounds.norm) << scale;
    EXPECT_LE(d.gradients, bounds.gradients) << scale << " " << d.worst_gradient;
  }
}

// With many words, each word's gradient is too small for fp16. The gradient of a scaled loss is large enough.
TEST(LossScaling, KeepsWhatIsSmall) {
  auto a = llama(false);
  a.vocabulary = 4001;
  const Outcome& exact = train_alone(program::build(a, alone({}, DType::kF64)), 1);
  const program::Program p = program::build(a, alone({}, DType::kF16));
  const double without = difference(exact, train_scaled(p, 1.0)).gradients,
               with = difference(exact, train_scaled(p, 16384.0)).gradients;
  EXPECT_GT(without, 10 * with) << without << " " << with;
}

// --- overflow

// When the optimizer is sharded, its fp32 master weights are sharded too.
TEST(Masters, AreShardedLikeTheMoments) {
  for (const DType compute : {DType::kBF16, DType::kF16})
    for (const int zero : {0, 1, 2, 3}) {
      const auto p = program::build(llama(true), narrow(setting_of(Layout{3, zero}, DType::kF32), compute));
      for (const auto& unit : p.units) {
        const auto& master = p.buffers[static_cast<std::size_t>(p.buffer("master." + unit.name))];
        const auto& moment = p.buffers[static_cast<std::size_t>(p.buffer("m." + unit.name))];
        EXPECT_EQ(master.dtype, DType::kF32);
        EXPECT_EQ(master.elements, moment.elements);
        EXPECT_EQ(master.elements, zero == 0 ? unit.elements : program::owned_range(unit.elements, 0, 3).second);
      }
    }
}

// The results and states of a sequence of steps on one rank.
struct Course {
  std::vector<exec::StepResult> steps;
  std::vector<double> scales;                   // the scale of each step
  std::vector<std::vector<at::Tensor>> states;  // param, master, m and v of all units, at the start and after each step
  optim::LossScale::State scale;                // the scale at the end
};

std::vector<at::Tensor> state_of(const exec::Executor& executor) {
  std::vector<at::Tensor> state;
  for (const char* family : {"param", "master", "m", "v"}) {
    if (!executor.has_state(family)) continue;  // fp32 is its own master
    for (std::size_t u = 0; u < executor.program().units.size(); ++u)
      state.push_back(executor.state(family, static_cast<int>(u)).clone());
  }
  return state;
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return a.size() == b.size();
}

// Trains on the same samples in each step until `updates` updates were made. With several data-parallel ranks, the
// first has no label that counts, so its own gradient is zero whatever the scale.
Course course_of(const program::Program& p, comm::Communicator& world, double scale, int updates) {
  const c10::InferenceMode inference;
  exec::Executor executor(p, world.rank(), &world, {});
  launch::initialize_parameters(executor, 5, 1);
  const auto& s = p.setting;
  const int data_rank = program::data_rank(executor.program().grid, executor.coordinates());
  const auto samples = synthetic_samples(s, p.arch.vocabulary);
  optim::LossScale loss_scale({scale, 0, 0}, 2000);
  Course course;
  course.states.push_back(state_of(executor));
  for (int made = 0; made < updates && course.steps.size() < 100;) {
    std::int64_t micro = 0;
    exec::StepInput input;
    input.step = made + 1;
    input.optimizer.lr = 3e-3;
    input.loss_scale = loss_scale.scale();
    input.load = [&](const exec::MicroBatch& to) {
      const std::int64_t slot = (micro++ * s.data_ranks() + data_rank) * s.micro_batch;
      const std::int64_t valid = samples(slot, std::clamp<std::int64_t>(s.global_batch - slot, 0, s.micro_batch), to);
      if (s.data_ranks() == 1 || data_rank > 0) return valid;
      std::fill_n(to.labels, s.micro_batch * s.sequence, -1);
      return std::int64_t{0};
    };
    course.scales.push_back(loss_scale.scale());
    course.steps.push_back(executor.run(input));
    course.states.push_back(state_of(executor));
    if (!course.steps.back().overflow) {
      loss_scale.good();
      ++made;
    } else {
      loss_scale.overflow(static_cast<std::int64_t>(course.steps.size()));
    }
  }
  course.scale = loss_scale.state();
  return course;
}

std::vector<Course> courses_of(const std::vector<program::Program>& stages, double scale, int updates) {
  const program::Setting& s = stages.front().setting;
  std::vector<Course> courses(static_cast<std::size_t>(s.ranks()));
  on_ranks(s.ranks(), [&](comm::Communicator& world) {
    const int stage = program::at_rank(s, world.rank()).pipeline.stage;
    courses[static_cast<std::size_t>(world.rank())] =
        course_of(stages.at(static_cast<std::size_t>(stage)), world, scale, updates);
  });
  return courses;
}

class Overflows : public ::testing::TestWithParam<Layout> {};

TEST_P(Overflows, IsSkippedOnAllRanksAlike) {
  constexpr double kStart = 0x1p+40;
  constexpr int kUpdates = 3;
  const auto stages = proved_stages(llama(true), narrow(setting_of(GetParam(), DType::kF32), DType::kF16));
  const auto courses = courses_of(stages, kStart, kUpdates);
  const auto& first = courses.front();
  const auto skipped = static_cast<int>(first.scale.skipped);
  ASSERT_GE(skipped, 5);
  ASSERT_EQ(static_cast<int>(first.steps.size()), skipped + kUpdates);
  for (const Course& c : courses) {
    EXPECT_EQ(c.scale, first.scale);
    EXPECT_EQ(c.scales, first.scales);
    for (int i = 0; i < static_cast<int>(c.steps.size()); ++i) {
      const auto k = static_cast<std::size_t>(i);
      const auto& step = c.steps[k];
      EXPECT_EQ(step.overflow, i < skipped) << i;
      EXPECT_EQ(step.non_finite, step.overflow);
      EXPECT_EQ(std::isfinite(step.grad_norm), !step.overflow);
      EXPECT_TRUE(std::isfinite(step.mean_loss()));
      EXPECT_EQ(c.scales[k], std::ldexp(kStart, -std::min(i, skipped)));
      EXPECT_EQ(same_tensors(c.states[k], c.states[k + 1]), step.overflow) << i;
    }
    EXPECT_LT(c.steps.back().mean_loss(), c.steps.front().mean_loss());
  }
  // A skipped step leaves no trace, so starting with the last scale gives the same run.
  const auto without = courses_of(stages, first.scale.scale, kUpdates);
  for (std::size_t r = 0; r < courses.size(); ++r) {
    EXPECT_EQ(without[r].scale.skipped, 0);
    EXPECT_TRUE(same_tensors(without[r].states.back(), courses[r].states.back())) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Some, Overflows,
                         ::testing::Values(Layout{1}, Layout{2, 0}, Layout{2, 1}, Layout{3, 3},
                                           Layout{2, 2, false, 3, 2}, tensor_ranks(true, 2, 1),
                                           pipeline_layout(k1f1b, 2, 3), on_host(kOptimizer, Layout{2, 1, false, 3}),
                                           on_host(kGradients, Layout{2, 2, false, 3})));

// The values are in the range of fp32, but not in that of a message in fp16.
TEST(Overflow, OfAMessageIsSkippedAlike) {
  for (const Layout& layout : {Layout{2, 0}, Layout{2, 3, false, 3, 2, true}}) {
    const auto stages = proved_stages(llama(true), travelling(layout, DType::kF32, DType::kF16));
    const auto courses = courses_of(stages, 0x1p+40, 2);
    EXPECT_GE(courses[0].scale.skipped, 5);
    for (const Course& c : courses) {
      EXPECT_EQ(c.scale, courses[0].scale);
      EXPECT_EQ(c.scales, courses[0].scales);
      for (std::size_t i = 0; i < c.steps.size(); ++i)
        EXPECT_EQ(same_tensors(c.states[i], c.states[i + 1]), c.steps[i].overflow) << i;
    }
    // In fp32 none of these values overflows.
    const auto wide = proved_stages(llama(true), travelling(layout, DType::kF32, DType::kF32));
    EXPECT_EQ(courses_of(wide, 0x1p+40, 2)[0].scale.skipped, 0);
  }
}

// Checks that in the tests above not all ranks overflow by themselves: without communication, the first rank has a
// gradient of zeros.
TEST(Overflow, IsOfOneRankAlone) {
  const program::Program p =
      program::build(llama(true), narrow(setting_of(Layout{2, 0, false, 6}, DType::kF32), DType::kF16));
  std::vector<std::int64_t> finite(2), nonzero(2), elements(2);
  on_ranks(2, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    const auto r = static_cast<std::size_t>(world.rank());
    exec::Options apart;
    apart.sleep = [](const program::Step& step) {
      return program::is_communication(step.op) ? std::optional(0.0) : std::nullopt;
    };
    exec::Executor executor(p, world.rank(), &world, apart);
    launch::initialize_parameters(executor, 5, 1);
    exec::StepInput input;
    input.loss_scale = 0x1p+40;
    input.load = [&](const exec::MicroBatch& to) {
      const std::int64_t n = p.setting.micro_batch * p.setting.sequence;
      const std::int64_t valid = synthetic_samples(p.setting, p.arch.vocabulary)(0, p.setting.micro_batch, to);
      if (r > 0) return valid;
      std::fill_n(to.labels, n, -1);
      return std::int64_t{0};
    };
    (void)executor.run(input);
    for (std::size_t u = 0; u < p.units.size(); ++u) {
      const at::Tensor gradient = executor.state("grad", static_cast<int>(u));
      finite[r] += gradient.isfinite().sum().item<std::int64_t>();
      nonzero[r] += gradient.ne(0).sum().item<std::int64_t>();
      elements[r] += gradient.numel();
    }
  });
  EXPECT_EQ(finite[0], elements[0]);
  EXPECT_EQ(nonzero[0], 0);
  EXPECT_LT(finite[1], elements[1]);
}

// A loss that is not finite is not an overflow, because a smaller scale does not help. Neither is a gradient that is
// not finite when the loss is not scaled.
TEST(Overflow, IsToldFromWhatEndsARun) {
  const auto a = llama(true);
  const auto once = [&](const program::Setting& s, double loss_scale, double weight) {
    const c10::InferenceMode inference;
    exec::Executor executor(program::build(a, s), 0, nullptr, {});
    launch::initialize_parameters(executor, 5, 1);
    if (weight != 0) executor.state("param", 0).fill_(weight);
    exec::StepInput input;
    input.loss_scale = loss_scale;
    input.load = [&](const exec::MicroBatch& to) { return synthetic_samples(s, a.vocabulary)(0, s.micro_batch, to); };
    return executor.run(input);
  };
  const auto fp16 = alone({}, DType::kF16), bf16 = alone({}, DType::kBF16), fp64 = alone({}, DType::kF64);
  for (const auto& [setting, scale, weight, non_finite, overflow] :
       {std::tuple{fp16, 1024.0, 0.0, false, false},
        {fp16, 0x1p+40, 0.0, true, true},
        {fp16, 1024.0, static_cast<double>(NAN), true, false},
        {bf16, 1.0, 0.0, false, false},
        {bf16, 0x1p+1000, 0.0, true, false},
        {fp64, 0x1p+1023, 0.0, true, false}}) {
    SCOPED_TRACE(fmt::format("{} scale {} weight {}", name_of(setting.compute), scale, weight));
    const auto result = once(setting, scale, weight);
    EXPECT_EQ(result.non_finite, non_finite);
    EXPECT_EQ(result.overflow, overflow);
    EXPECT_EQ(std::isfinite(result.mean_loss()), weight == 0);
  }
}

}  // namespace
}  // namespace molen::prove
