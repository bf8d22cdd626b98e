// Tests that a program's setting only records where the program comes from. The executor finds all it needs in ops,
// operands and the grid of ranks, so a program whose setting was wiped after it was built gives the same bits.
#include <gtest/gtest.h>

#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// The losses of two steps of one rank, and each state of each unit after them.
struct Bits {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> states;
};

Bits bits_of_rank(const program::Program& p, comm::Communicator& world, bool wiped) {
  const c10::InferenceMode inference;
  program::Program given = p;
  if (wiped) given.setting = program::Setting{};
  exec::Executor executor(std::move(given), world.rank(), &world, {});
  launch::initialize_parameters(executor, 5, 1);
  const auto& s = p.setting;
  const auto samples = synthetic_samples(s, p.arch.vocabulary);
  Bits bits;
  for (int step = 1; step <= 2; ++step) {
    exec::StepInput input;
    input.step = step;
    input.optimizer.lr = 3e-3;
    if (s.scales_loss()) input.loss_scale = 1024.0;
    input.load = loads_of_step(executor, s, samples, step);
    const auto result = executor.run(input);
    EXPECT_FALSE(result.non_finite);
    bits.losses.push_back(result.mean_loss());
  }
  std::vector<std::string> families{"param", "grad", "master"};
  for (const auto& state : p.optimizer->states) families.emplace_back(name_of(state.value));
  for (const std::string& family : families)
    for (std::size_t u = 0; u < p.units.size(); ++u)
      if (executor.has_state(family))
        bits.states[fmt::format("{} of {}", family, p.units[u].name)] =
            executor.state(family, static_cast<int>(u)).clone();
  return bits;
}

std::vector<Bits> bits_of(const std::vector<program::Program>& stages, bool wiped) {
  const auto& s = stages.front().setting;
  std::vector<Bits> all(static_cast<std::size_t>(s.ranks()));
  on_ranks(s.ranks(), [&](comm::Communicator& world) {
    const auto stage = static_cast<std::size_t>(program::at_rank(s, world.rank()).pipeline.stage);
    all[static_cast<std::size_t>(world.rank())] = bits_of_rank(stages.at(stage), world, wiped);
  });
  return all;
}

void expect_same_bits(const arch::Architecture& a, const program::Setting& s, const std::string& what) {
  SCOPED_TRACE(what);
  const auto stages = program::build_stages(a, s);
  const auto built = bits_of(stages, false), wiped = bits_of(stages, true);
  for (std::size_t r = 0; r < built.size(); ++r) {
    EXPECT_EQ(built[r].losses, wiped[r].losses) << "rank " << r;
    ASSERT_FALSE(built[r].states.empty());
    for (const auto& [name, state] : built[r].states)
      EXPECT_TRUE(at::equal(state, wiped[r].states.at(name))) << name << ", rank " << r;
  }
}

Layout on_tensor_ranks(int ranks, bool rows, std::int64_t pieces = 1) {
  Layout l{1, 0};
  l.tensor = ranks;
  l.rows = rows;
  l.chunks = pieces;
  return l;
}
Layout on_context_ranks(program::ContextForm form, bool documents) {
  Layout l{1, 1, false, 3};
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  l.documents = documents;
  return l;
}
Layout on_stages(program::ScheduleKind kind, int chunks = 1) {
  Layout l{1, 0, true, 3};
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}

TEST(Provenance, EveryKindOfLayoutRunsWithoutItsSetting) {
  const std::map<std::string, Layout> layouts{
      {"one rank", Layout{}},
      {"ZeRO-1", Layout{2, 1, false, 3}},
      {"ZeRO-2, recompute", Layout{2, 2, true, 1}},
      {"ZeRO-3, two copies, optimizer over all", Layout{2, 3, false, 3, 2, true}},
      {"tensor", on_tensor_ranks(2, false)},
      {"sequence", on_tensor_ranks(2, true)},
      {"pieces", on_tensor_ranks(2, true, 3)},
      {"keys gathered", on_context_ranks(kGather, false)},
      {"a ring within documents", on_context_ranks(kRing, true)},
      {"1F1B", on_stages(program::ScheduleKind::k1f1b)},
      {"halves", on_stages(program::ScheduleKind::kZbH1)},
      {"all on the host, ZeRO-3", on_host(kEverything, Layout{2, 3, false, 3})},
      {"gradients on the host, half layers", on_host(kGradients, Layout{2, 2}).units(program::kHalfLayer)},
  };
  for (const auto& [name, layout] : layouts) {
    expect_same_bits(llama(true), setting_of(layout, DType::kF32), name + ", Llama");
    if (layout.tensor == 1) expect_same_bits(gpt(), setting_of(layout, DType::kF64), name + ", GPT");
  }
}

// With four tensor ranks and three key heads, two ranks use each key head, so every rank keeps all keys and values.
TEST(Provenance, KeysThatEveryTensorRankKeeps) {
  auto a = llama(false);
  a.heads = 12;
  a.kv_heads = 3;
  a.head_dim = 6;
  expect_same_bits(a, setting_of(on_tensor_ranks(4, false), DType::kF64), "copied keys");
}

TEST(Provenance, ExpertRanksAndTiles) {
  auto s = setting_of(experts(2, {2, 3, true, 2}), DType::kF32);
  expect_same_bits(eight_experts(), s, "expert ranks");
  s.expert_tiles = 2;
  expect_same_bits(eight_experts(), s, "expert ranks, in tiles");
  auto limited = eight_experts();
  limited.experts->capacity = 0.75;
  limited.experts->dense_layers = 1, limited.experts->shared = 2;
  Layout l = experts(2, {1, 1, false, 2});
  l.context = 2;
  expect_same_bits(limited, setting_of(l, DType::kF32), "a capacity over context ranks");
}

TEST(Provenance, EveryOptimizer) {
  for (const auto& optimizer : program::optimizers())
    for (const Layout& layout : {Layout{2, 2, false, 3}, on_tensor_ranks(2, true)}) {
      auto s = setting_of(layout, DType::kF32);
      s.optimizer = optimizer.name;
      expect_same_bits(llama(true), s, std::string(optimizer.name));
    }
}

TEST(Provenance, NarrowTypes) {
  for (const DType compute : {DType::kBF16, DType::kF16}) {
    auto s = setting_of(Layout{2, 2, false, 3}, DType::kF32);
    s.compute = compute;
    s.reduce = compute;
    s.kernels = arch::Kernels::kAten;
    expect_same_bits(llama(true), s, std::string(name_of(compute)));
  }
}

}  // namespace
}  // namespace molen::prove
