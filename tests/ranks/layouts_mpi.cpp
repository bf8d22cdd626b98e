// The layout proof under a launcher: mpirun -n N layouts_mpi. Compares every ZeRO stage on N ranks with one rank, over
// ten steps in fp64 and one in fp32, also with gradients that travel in bf16; and runs the same layout twice. Also
// compares how long ranks wait for each other with its definition.
#include "comm/mpi/mpi.h"
#include "launch/test_waiting.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

comm::Communicator& world() {
  static const std::unique_ptr<comm::Communicator> w = comm::mpi_world();
  return *w;
}

Outcome run(comm::Communicator& ranks, const arch::Architecture& a, const program::Setting& s, int steps) {
  const auto stages = program::build_stages(a, s);
  EXPECT_TRUE(program::verify_world(stages).empty());
  const auto& p = stages.at(static_cast<std::size_t>(program::at_rank(s, ranks.rank()).pipeline.stage));
  program::require_sound(p, "test");
  return train_rank(p, ranks, steps);
}

// A ZeRO stage with a given number of replicas, over all ranks.
class LayoutsMpi : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    const Layout& l = GetParam();
    if (world().size() % (l.replicas * l.tensor * l.stages * l.context * l.experts) != 0 ||
        (l.replicas > 1 && world().size() < 4))
      GTEST_SKIP() << "not on " << world().size() << " ranks";
  }
  static Layout layout() {
    Layout l = GetParam();
    l.shards = world().size() / l.replicas / l.tensor / l.stages / l.context / l.experts;
    return l;
  }
  static std::vector<arch::Architecture> models() {
    auto all = whole_models();
    if (GetParam().stages > 1)
      for (auto& a : all) a.layers = 4;  // one layer per chunk, with two chunks on each of two stages
    return all;
  }
  static std::vector<arch::Architecture> whole_models() {
    if (GetParam().experts > 1) return {eight_experts()};
    if (GetParam().tensor == 1) return {llama(false), llama(true), gpt()};
    auto heads = gpt();  // sizes that two ranks can share
    heads.heads = heads.kv_heads = 4;
    return {llama(false), llama(true), heads};
  }
  static program::Setting setting(DType compute) { return setting_of(layout(), compute); }
  static program::Setting alone(DType compute) {
    auto s = setting_of(1, 0, false, compute, 3);
    s.sequence = GetParam().sequence;
    return s;
  }
};

TEST_P(LayoutsMpi, SameModelInDouble) {
  const auto self = comm::make_self();
  for (const auto& a : models()) {
    const Outcome many = run(world(), a, setting(DType::kF64), 10);
    if (world().rank() != 0) continue;  // rank 0 holds the losses
    const Outcome one = run(*self, a, alone(DType::kF64), 10);
    const double error = difference(one, many).parameters;
    EXPECT_LE(error, 1e-9) << a.name << " tied " << a.tied;
    for (int i = 0; i < 10; ++i)
      EXPECT_NEAR(one.losses[static_cast<std::size_t>(i)], many.losses[static_cast<std::size_t>(i)], 1e-9);
    fmt::print("{} tied {}, ZeRO-{} on {} x {} x {} MPI ranks, {} stages: parameters within {:.1e}\n", a.name, a.tied,
               GetParam().zero, layout().shards, layout().replicas, layout().tensor, layout().stages, error);
  }
}

TEST_P(LayoutsMpi, OneStepInFloatWithinTheBound) {
  const auto a = models().front();
  const Outcome many = run(world(), a, setting(DType::kF32), 1);
  if (world().rank() != 0) return;
  const auto self = comm::make_self();
  const Outcome one = run(*self, a, alone(DType::kF32), 1);
  const Difference d = difference(one, many);
  const Bounds bounds = bounds_of(program::build(a, setting(DType::kF32)));
  EXPECT_GT(many.losses.at(0), 0);
  EXPECT_LE(d.loss, bounds.loss);
  EXPECT_LE(d.gradients, bounds.gradients) << d.worst_gradient;
  fmt::print(
      "fp32, ZeRO-{} on {} x {} MPI ranks: gradients within {:.1e} of the {:.1e} allowed, loss {:.1e} of {:.1e}\n",
      GetParam().zero, layout().shards, layout().replicas, d.gradients, bounds.gradients, d.loss, bounds.loss);
}

// Gradients that travel in 16 bits; the bound is the distance of a 16-bit step from fp64.
TEST_P(LayoutsMpi, OneStepWithNarrowMessagesWithinTheBound) {
  if (GetParam().experts > 1) GTEST_SKIP() << "in a 16-bit step tokens go to other experts, so it bounds nothing";
  const auto a = models().front();
  auto narrow = setting(DType::kF32), bf16 = alone(DType::kF32);
  narrow.reduce = bf16.compute = DType::kBF16;
  bf16.kernels = arch::Kernels::kAten;
  const Outcome many = run(world(), a, narrow, 1);
  if (world().rank() != 0) return;
  const auto self = comm::make_self();
  const Bounds bounds = bounds_beside(run(*self, a, alone(DType::kF64), 1), run(*self, a, bf16, 1));
  ASSERT_LT(bounds.gradients, 0.25);
  const Difference d = difference(run(*self, a, alone(DType::kF32), 1), many);
  EXPECT_LE(d.loss, bounds.loss);
  EXPECT_LE(d.norm, bounds.norm);
  EXPECT_LE(d.gradients, bounds.gradients) << d.worst_gradient;
  fmt::print("gradients in bf16, ZeRO-{} on {} x {} MPI ranks: within {:.1e} of the {:.1e} allowed\n", GetParam().zero,
             layout().shards, layout().replicas, d.gradients, bounds.gradients);
}

TEST_P(LayoutsMpi, SameLayoutTwiceIsIdentical) {
  const auto s = setting(DType::kF32);
  const auto model = models().front();
  const Outcome a = run(world(), model, s, 5), b = run(world(), model, s, 5);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.hash, b.hash);
}

// How long each rank waited for others, on layouts of so many ranks.
TEST(WaitingMpi, FollowsFromTheDurationsOfAllRanks) {
  for (const program::Setting& setting : launch::layouts_that_wait(world().size())) {
    double waiting = launch::expect_waiting_by_definition(setting, world());
    world().all_reduce(&waiting, 1, DType::kF64, comm::Reduce::kSum);
    EXPECT_EQ(waiting > 0, world().size() > 1) << mesh::Mesh(setting.mesh, world().size()).text();
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, LayoutsMpi,
                         ::testing::Values(Layout{1, 0}, Layout{1, 1}, Layout{1, 2}, Layout{1, 3, true},
                                           Layout{1, 2, false, 1, 2}, Layout{1, 3, false, 2, 2, true}));

Layout tensor_ranks(int zero, bool rows, std::int64_t chunks = 1) {
  Layout l{1, zero};
  l.tensor = 2;
  l.rows = rows;
  l.chunks = chunks;
  return l;
}
// Under MPI a send blocks until it is received, except for short messages.
Layout piped(program::ScheduleKind kind, int chunks, int zero) {
  Layout l{1, zero, false, 3};
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}
INSTANTIATE_TEST_SUITE_P(Stages, LayoutsMpi,
                         ::testing::Values(piped(program::ScheduleKind::k1f1b, 1, 0),
                                           piped(program::ScheduleKind::kInterleaved, 2, 1),
                                           piped(program::ScheduleKind::kZbV, 2, 2)));
Layout context(program::ContextForm form, int zero) {
  Layout l{1, zero};
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  return l;
}
INSTANTIATE_TEST_SUITE_P(Context, LayoutsMpi,
                         ::testing::Values(context(program::ContextForm::kGather, 1),
                                           context(program::ContextForm::kRing, 3)));
Layout on_host(program::Offload offload, Layout l) {
  l.offload = offload;
  return l;
}
INSTANTIATE_TEST_SUITE_P(Offload, LayoutsMpi,
                         ::testing::Values(on_host({true, true, true, true}, {1, 3, false, 1}),
                                           on_host({true, false, false, false}, {1, 1, false, 2}),
                                           on_host({true, true, false, false}, {1, 2, false, 1, 2})));
INSTANTIATE_TEST_SUITE_P(Tensor, LayoutsMpi,
                         ::testing::Values(tensor_ranks(0, true), tensor_ranks(3, false), tensor_ranks(2, true, 3)));
INSTANTIATE_TEST_SUITE_P(Experts, LayoutsMpi, ::testing::Values(experts(2), experts(2, {1, 3, false, 1})));

}  // namespace
}  // namespace molen::prove

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (molen::prove::world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  const int rc = RUN_ALL_TESTS();
  if (rc != 0) molen::prove::world().abort("the layout proof failed");
  return rc;
}
