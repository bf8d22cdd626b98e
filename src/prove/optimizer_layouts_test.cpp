// Tests that every optimizer computes the same model in all layouts, and that its states move between them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "launch/init.h"
#include "math/scratch.h"
#include "optim/update.h"
#include "program/ir/layout.h"
#include "program/values/value_memory.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

program::Setting updated_by(std::string_view kind, program::Setting s) {
  s.optimizer = std::string(kind);
  return s;
}

// Layouts in which an optimizer's states are whole, sharded, sharded twice, and on the host.
std::vector<Layout> state_layouts() {
  std::vector<Layout> layouts;
  for (int zero = 0; zero <= 3; ++zero)
    for (int shards = 2; shards <= 4; ++shards) layouts.push_back({shards, zero, false, 4 - zero});
  for (const Layout& l : {Layout{2, 1, false, 2, 2}, Layout{2, 2, false, 1, 2, true}, Layout{2, 3, false, 3, 2, true},
                          Layout{3, 1, true, 2}.units(2), Layout{2, 3, false, 2}.units(program::kHalfLayer)})
    layouts.push_back(l);
  for (const int zero : {0, 1, 3}) {
    Layout tensor{zero == 0 ? 1 : 2, zero};
    tensor.tensor = 2;
    tensor.rows = zero == 1;
    layouts.push_back(tensor);
  }
  return layouts;
}

Layout spread_over_stages(int stages, program::ScheduleKind kind, int chunks, Layout l = {1, 0, false, 3}) {
  l.stages = stages;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}

// Pipelines in which a stage's states are whole, sharded, and split over tensor ranks.
std::vector<Layout> staged_layouts() {
  using enum program::ScheduleKind;
  Layout tensor{1, 0, false, 3};
  tensor.tensor = 2;
  Layout both{2, 2, false, 2};
  both.tensor = 2;
  both.rows = true;
  return {spread_over_stages(2, k1f1b, 1),
          spread_over_stages(3, kGpipe, 1),
          spread_over_stages(2, kZbV, 2),
          spread_over_stages(2, k1f1b, 1, {2, 1, false, 2}),
          spread_over_stages(2, kGpipe, 1, {2, 3, false, 2}),
          spread_over_stages(2, kZbH1, 1, tensor),
          spread_over_stages(2, kInterleaved, 2, both)};
}

arch::Architecture of_four_layers(bool tied) {
  auto a = llama(tied);
  a.layers = 4;
  return a;
}

program::Setting in_bf16(program::Setting s) {
  s.compute = DType::kBF16;
  s.master = s.reduce = DType::kF32;
  s.kernels = arch::Kernels::kAten;
  return s;
}

class Optimizers : public ::testing::TestWithParam<std::string_view> {};

// Compares steps in fp64 with one rank. The model has no biases: the gradient of a key's bias is zero except for
// rounding, and Lion would make a whole step of the sign of that rounding.
TEST_P(Optimizers, SameModelInAllLayouts) {
  for (const bool tied : {false, true}) {
    const auto a = llama(tied);
    const Outcome& one =
        train_alone(program::build(a, updated_by(GetParam(), setting_of(1, 0, false, DType::kF64, 3))), proof_steps());
    for (const Layout& layout : state_layouts()) {
      const auto p = program::build(a, updated_by(GetParam(), setting_of(layout, DType::kF64)));
      program::require_sound(p, "test");
      SCOPED_TRACE(
          fmt::format("{} shards x {} replicas, ZeRO-{}, tied {}", layout.shards, layout.replicas, layout.zero, tied));
      expect_same_model(one, train_threads(p, proof_steps()));
    }
  }
}

// When the table is tied, the first and the last stage both update it.
TEST_P(Optimizers, SameModelInPipelines) {
  for (const bool tied : {false, true}) {
    const auto a = of_four_layers(tied);
    const Outcome& one =
        train_alone(program::build(a, updated_by(GetParam(), setting_of(1, 0, false, DType::kF64, 3))), proof_steps());
    for (const Layout& layout : staged_layouts()) {
      SCOPED_TRACE(fmt::format("{} stages, {}, {} shards, {} tensor ranks, ZeRO-{}, tied {}", layout.stages,
                               name_of(layout.pipeline.schedule), layout.shards, layout.tensor, layout.zero, tied));
      const auto stages = proved_stages(a, updated_by(GetParam(), setting_of(layout, DType::kF64)));
      expect_same_model(one, train_threads(stages, proof_steps()));
    }
  }
}

// Each expert's matrices are parameters of their own.
TEST_P(Optimizers, SparseLayersAreTheSameModelInMicroBatches) {
  auto a = mixtral();
  a.qk_norm = arch::QkNorm::kAll;
  const auto trained = [&](std::int64_t micro) {
    const auto p = program::build(a, updated_by(GetParam(), setting_of(1, 0, false, DType::kF64, micro)));
    program::require_sound(p, "test");
    return train_threads(p, proof_steps());
  };
  const Outcome one = trained(3);
  for (const std::int64_t micro : {1, 12}) expect_same_model(one, trained(micro));
}

// --- bf16: master weights in fp32

constexpr double kLargeStep = 0.3;  // so large that the masters show what the size of a step is relative to

// Trains one step, and leaves a checkpoint of it. Returns the outcome, and the factor by which the update scales the
// gradient.
std::pair<Outcome, double> step_of(const std::vector<program::Program>& stages, const std::filesystem::path& dir) {
  const program::Setting& setting = stages.front().setting;
  Trial trial;
  trial.steps = 1;
  trial.lr = kLargeStep;
  Outcome outcome;
  double scale = 0;
  on_ranks(setting.ranks(), [&](comm::Communicator& world) {
    const int stage = program::at_rank(setting, world.rank()).pipeline.stage;
    const program::Program& p = stages.at(static_cast<std::size_t>(stage));
    const ReadSamples read = synthetic_samples(p.setting, p.arch.vocabulary);
    Outcome made = prove(p, world, read, trial);
    exec::Executor executor(p, world.rank(), &world, {});
    launch::initialize_parameters(executor, trial.seed, 1);
    exec::StepInput input;
    input.optimizer.lr = trial.lr;
    input.load = loads_of_step(executor, p.setting, read, 1);
    const exec::StepResult result = executor.run(input);
    checkpoint::save(launch::spans_of(executor),
                     {dir, 1, world.rank(), world.size(), launch::agree_over(world), Json{{"x", 1}}, {}, 0});
    if (world.rank() != 0) return;
    // the gradient is that of the mean loss over all positions
    const auto positions = static_cast<double>(p.setting.positions());
    scale = std::min(1.0, input.clip / (result.grad_norm + 1e-6)) * positions / result.valid_tokens;
    outcome = std::move(made);
  });
  return {std::move(outcome), scale};
}

// Both sides compute in fp32, in orders that may differ. The bound is a few roundings of the largest number.
void expect_rounded_alike(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  const double largest = wanted.abs().max().item<double>();
  EXPECT_LE((found - wanted).abs().max().item<double>(), 8 * 0x1p-24 * largest) << what;
  EXPECT_GT(largest, 0) << what;
}

// Whole parameters on one rank: `moved` has them moved from the start by the optimizer's rule, and `found` has them as
// loaded from a layout's checkpoint.
struct Whole {
  const program::Program& program;
  exec::Executor moved, found;

  // Returns the numbers of one parameter.
  static at::Tensor part(const exec::Executor& of, program::Value value, std::size_t unit,
                         const program::UnitEntry& entry) {
    const program::Program& p = of.program();
    const auto place = [&](std::int64_t at) { return program::elements_before(p, value, p.units[unit], at); };
    const std::int64_t begin = place(entry.offset),
                       end = place(entry.offset + p.parameters[static_cast<std::size_t>(entry.parameter)].elements());
    return of.state(std::string(name_of(value)), static_cast<int>(unit)).narrow(0, begin, end - begin);
  }

  void move(std::size_t unit, const program::UnitEntry& entry, const Outcome& outcome, double scale) {
    const arch::Parameter& parameter = program.parameters[static_cast<std::size_t>(entry.parameter)];
    optim::Piece piece;
    piece.decay = parameter.decay;
    piece.grad = outcome.tensors.at("grad/" + parameter.name).to(at::kFloat).reshape({-1});
    piece.param = part(moved, program::Value::kMaster, unit, entry);
    piece.rows = entry.rows;
    piece.columns = entry.columns;
    for (const auto& state : program.optimizer->states) {
      const at::Tensor kept = part(moved, state.value, unit, entry);
      piece.states.push_back(kept.numel() > 0 ? kept : at::Tensor());
    }
    const at::Tensor room = at::empty({1 << 20}, at::kByte);
    math::Scratch scratch(room.data_ptr(), room.numel());
    optim::Options options;
    options.lr = kLargeStep;
    const optim::Update update{options, 1, at::full({}, scale, at::kDouble), 1, &scratch};
    optim::rule_named(program.optimizer->name)(update, piece);
  }

  void compare(std::size_t unit, const program::UnitEntry& entry, const Outcome& outcome) const {
    const std::string& name = program.parameters[static_cast<std::size_t>(entry.parameter)].name;
    const at::Tensor master = part(found, program::Value::kMaster, unit, entry);
    expect_rounded_alike(master, part(moved, program::Value::kMaster, unit, entry), name);
    EXPECT_TRUE(at::equal(outcome.tensors.at(name).reshape({-1}), master.to(at::kBFloat16).to(at::kDouble)))
        << name << ": the weights are not what the masters round to";
    for (const auto& state : program.optimizer->states)
      if (const at::Tensor kept = part(moved, state.value, unit, entry); kept.numel() > 0)
        expect_rounded_alike(part(found, state.value, unit, entry), kept,
                             fmt::format("{} of {}", name_of(state.value), name));
  }
};

// One step of a layout moves its masters and states as the optimizer's rule moves whole parameters with the same
// gradient.
void expect_moved_by_the_rule(const arch::Architecture& a, std::string_view kind, const Layout& layout) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("molen_masters_{}_{}", kind, ::getpid());
  std::filesystem::remove_all(dir);
  const auto setting = [&](const Layout& l) { return in_bf16(updated_by(kind, setting_of(l, DType::kF32))); };
  const auto [outcome, scale] = step_of(proved_stages(a, setting(layout)), dir);
  const program::Program one = program::build(a, setting({1, 0, false, 3}));
  const auto self = comm::make_self();
  Whole whole{one, {one, 0, self.get(), {}}, {one, 0, self.get(), {}}};
  launch::initialize_parameters(whole.moved, Trial{}.seed, 1);
  launch::load_state(checkpoint::Checkpoint(*checkpoint::latest(dir)), whole.found, *self, false);
  std::filesystem::remove_all(dir);
  for (std::size_t u = 0; u < one.units.size(); ++u)
    for (const program::UnitEntry& entry : one.units[u].entries) {
      whole.move(u, entry, outcome, scale);
      whole.compare(u, entry, outcome);
    }
}

TEST_P(Optimizers, MastersMoveByTheRuleInBf16) {
  Layout tensor{1, 0}, rows{2, 3};
  tensor.tensor = rows.tensor = 2;
  rows.rows = true;
  for (const Layout& layout : {Layout{1, 0, false, 3}, Layout{3, 1}, Layout{2, 3}, tensor, rows,
                               spread_over_stages(2, program::ScheduleKind::k1f1b, 1, {2, 2, false, 2})}) {
    SCOPED_TRACE(fmt::format("{} shards, {} tensor ranks, {} stages, ZeRO-{}", layout.shards, layout.tensor,
                             layout.stages, layout.zero));
    expect_moved_by_the_rule(llama(true), GetParam(), layout);
  }
  SCOPED_TRACE("sparse layers");
  expect_moved_by_the_rule(mixtral(), GetParam(), {1, 0, false, 3});
}

TEST_P(Optimizers, LearnInBf16AndDeadBuffersAreDead) {
  Layout tensor{2, 2};
  tensor.tensor = 2;
  for (const Layout& layout :
       {Layout{2, 3, true}, tensor, spread_over_stages(2, program::ScheduleKind::kZbH1, 1, {2, 1, false, 3})}) {
    const auto stages = proved_stages(llama(true), in_bf16(updated_by(GetParam(), setting_of(layout, DType::kF32))));
    const Outcome once = train_threads(stages, 5);
    EXPECT_EQ(once.hash, train_threads(stages, 5, {at::kCPU, true}).hash);
    EXPECT_LT(once.losses.back(), once.losses.front()) << "it does not learn";
  }
}

// --- states on the host, and in checkpoints

// States that are kept and updated on the host end with the same bits as states on the device.
TEST_P(Optimizers, TheHostUpdatesToTheSameBits) {
  const auto s = updated_by(GetParam(), setting_of(Layout{2, 1, false, 2}, DType::kF32));
  auto host = s;
  host.offload = kOptimizer;
  if (const auto why = program::optimizer_refused(host)) {
    EXPECT_THROW(program::build(llama(false), host), UsageError);
    EXPECT_NE(why->find("parallel.offload"), std::string::npos) << *why;
    return;
  }
  EXPECT_EQ(train_threads(program::build(llama(false), s), 3).hash,
            train_threads(program::build(llama(false), host), 3).hash);
}

TEST_P(Optimizers, CheckpointsMoveBetweenLayouts) {
  const auto a = llama(true);
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("molen_states_{}_{}", GetParam(), ::getpid());
  std::filesystem::remove_all(dir);
  const auto layout = [&](int ranks, int zero, int tensor = 1, int stages = 1) {
    Layout l{ranks, zero};
    l.tensor = tensor;
    if (stages > 1) l = spread_over_stages(stages, program::ScheduleKind::k1f1b, 1, l);
    return program::build_stages(a, updated_by(GetParam(), setting_of(l, DType::kF32)));
  };
  for (const auto& from : {layout(3, 1), layout(2, 3, 2), layout(2, 1, 1, 2)}) {
    const std::string saved = hash_of_checkpoint(from, dir, true);
    for (const int zero : {0, 1, 2, 3}) EXPECT_EQ(saved, hash_of_checkpoint(layout(2, zero), dir, false)) << zero;
    for (const int zero : {0, 2}) EXPECT_EQ(saved, hash_of_checkpoint(layout(zero == 0 ? 1 : 2, zero, 2), dir, false));
    for (const int tensor : {1, 2}) EXPECT_EQ(saved, hash_of_checkpoint(layout(2, 3, tensor, 2), dir, false)) << tensor;
    std::filesystem::remove_all(dir);
  }
}

// Each optimizer's rule trains other weights.
TEST(OptimizerKinds, EachTrainsDifferently) {
  std::map<std::string, std::string_view> hashes;
  for (const auto& optimizer : program::optimizers()) {
    EXPECT_NO_THROW(optim::rule_named(optimizer.name));
    const auto p = program::build(llama(false), updated_by(optimizer.name, setting_of(1, 0, false, DType::kF32)));
    const auto [same, fresh] = hashes.emplace(train_threads(p, 2).hash, optimizer.name);
    EXPECT_TRUE(fresh) << optimizer.name << " and " << same->second;
  }
  EXPECT_THROW(optim::rule_named("adam"), Error);
}

std::vector<std::string_view> kinds() {
  std::vector<std::string_view> names;
  for (const auto& optimizer : program::optimizers()) names.push_back(optimizer.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace molen::prove
