// Tests that layouts compute the same model: ranks x ZeRO x recompute x micro-batches run on thread-ranks from the same
// start on the same data.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "comm/nccl/nccl.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"
#include "exec/executor.h"
#include "launch/checkpointing.h"
#include "launch/init.h"
#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "program/verify/verify.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

Outcome train(const arch::Architecture& a, const program::Setting& s, int steps, exec::Options options = {},
              const program::Program* program = nullptr) {
  const program::Program p = program ? *program : program::build(a, s);
  program::require_sound(p, "test");
  return train_threads(p, steps, options);
}

class Layouts : public ::testing::TestWithParam<Layout> {};

// The proof run trains in fp64 on the reference kernels.
TEST_P(Layouts, SameModelInDouble) {
  for (const auto& a : {llama(false), llama(true), gpt()}) {
    const Outcome& one = train_alone(program::build(a, setting_of(1, 0, false, DType::kF64, 3)), proof_steps());
    const Outcome many = train(a, setting_of(GetParam(), DType::kF64), proof_steps());
    EXPECT_LE(difference(one, many).parameters, 1e-9) << a.name << " tied " << a.tied;
    ASSERT_EQ(one.losses.size(), many.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one.losses[i], many.losses[i], 1e-9);
    EXPECT_LT(many.losses.back(), many.losses.front()) << "it does not learn";
  }
}

// One step in fp32 from identical state. Gradients are sums over 12 x 23 tokens through two layers: rounding grows with
// the square root of the longest reduction (tokens x sizes), a few ulps each.
TEST_P(Layouts, OneStepInFloatWithinTheBound) {
  const Outcome& one = train_alone(program::build(llama(false), setting_of(1, 0, false, DType::kF32, 3)), 1);
  const Outcome many = train(llama(false), setting_of(GetParam(), DType::kF32), 1);
  const Difference d = difference(one, many);
  const Bounds bounds = bounds_of(program::build(llama(false), setting_of(GetParam(), DType::kF32)));
  expect_within(d, bounds);
}

TEST_P(Layouts, SameLayoutTwiceIsIdentical) {
  const auto s = setting_of(GetParam(), DType::kF32);
  const Outcome a = train(llama(false), s, 5), b = train(llama(false), s, 5);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.hash, b.hash);
}

// Dead values are never read, so filling them with NaN changes no bit.
TEST_P(Layouts, DeadBuffersAreDead) {
  const auto s = setting_of(GetParam(), DType::kF32);
  EXPECT_EQ(train(llama(true), s, 2).hash, train(llama(true), s, 2, {at::kCPU, true}).hash);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, Layouts,
    ::testing::ValuesIn(suite::covering({Layout{1, 0, true, 2},
                                         Layout{1, 0, false, 12},
                                         Layout{2, 0, false, 2},
                                         Layout{2, 1, false, 3},
                                         Layout{3, 0, true, 2},
                                         Layout{3, 1, false, 1},
                                         Layout{4, 0, false, 3},
                                         Layout{4, 1, true, 2},
                                         Layout{4, 1, false, 5},
                                         Layout{2, 2, false, 2},
                                         Layout{3, 2, true, 1},
                                         Layout{2, 3, false, 3},
                                         Layout{3, 3, false, 2, 1, false, 0},
                                         Layout{4, 3, true, 1, 1, false, 2},
                                         Layout{2, 1, false, 2, 2},
                                         Layout{2, 2, false, 2, 2},
                                         Layout{2, 3, true, 1, 2},
                                         Layout{2, 2, false, 1, 2, true},
                                         Layout{2, 3, false, 3, 2, true},
                                         Layout{3, 3, false, 1, 2, true, 3},
                                         Layout{2, 1}.recomputing("attention,activation"),
                                         Layout{3, 3}.recomputing("norm_qkv,norm_up/2"),
                                         Layout{2, 2, false, 1, 2}.recomputing("out_projection,activation"),
                                         Layout{2, 0, false, 2}.units(program::kHalfLayer),
                                         Layout{3, 1, true, 2}.units(2),
                                         Layout{2, 2, false, 3, 2, true}.units(program::kHalfLayer),
                                         Layout{3, 3, true, 1}.units(program::kHalfLayer),
                                         Layout{2, 3, false, 2}.recomputing("attention,norm_up/2").units(2)})));

#ifdef MOLEN_FAKE_NCCL
// Runs the program over the NCCL communicator with mock libraries that treat host memory as a device's.
TEST(Nccl, CarriesTheProgramsCollectives) {
  comm::NcclOptions options;
  options.nccl = {MOLEN_FAKE_NCCL};
  options.runtime = {MOLEN_FAKE_CUDART};
  for (const int zero : {0, 1}) {
    const auto s = setting_of(3, zero, false, DType::kF64);
    const program::Program p = program::build(llama(false), s);
    Outcome out;
    on_ranks(3, [&](comm::Communicator& world) {
      const auto devices = comm::open_nccl(world, world.rank(), options);
      const Outcome mine = train_rank(p, *devices, 10);
      EXPECT_GT(devices->traffic().calls, 0);
      if (world.rank() == 0) out = mine;
    });
    EXPECT_LE(difference(train(llama(false), setting_of(1, 0, false, DType::kF64), 10), out).parameters, 1e-9);
  }
}
#endif

// Recomputes every set of parts, in all layers and in every second one, alone and on tensor ranks that hold rows.
TEST(Recompute, ChangesNoBit) {
  constexpr std::array kParts{arch::Part::kNormQkv, arch::Part::kAttention, arch::Part::kOutProjection,
                              arch::Part::kNormUp, arch::Part::kActivation};
  for (const bool tensor : {false, true}) {
    Layout layout;
    layout.tensor = tensor ? 3 : 1;
    layout.rows = tensor;
    auto a = llama(false);
    a.ffn = 45;
    auto s = setting_of(layout, DType::kF32);
    const Outcome kept = train(a, s, 2);
    for (unsigned set = 1; set < 1U << kParts.size(); ++set)
      for (const int every : {1, 2}) {
        s.recompute = {};
        for (std::size_t i = 0; i < kParts.size(); ++i)
          if (set >> i & 1) s.recompute.add(kParts[i]);
        s.recompute.every = every;
        EXPECT_EQ(train(a, s, 2).hash, kept.hash) << program::text_of(s.recompute) << " tensor " << tensor;
      }
  }
}

// The text is what runs, so an accepted edit changes the run as the edit says.
TEST(EditedProgram, RunsAsTheTextSays) {
  const auto a = llama(false);
  auto s = setting_of(1, 0, false, DType::kF32);
  s.sequence = 40;
  s.micro_batch = 12;  // 480 tokens: two chunks of the head
  const auto built = program::build(a, s);
  const Outcome plain = train(a, s, 3);
  // The program that is read back from its text gives the same bits.
  const auto same = program::parse(program::print(built), "text");
  EXPECT_EQ(train(a, s, 3, {}, &same).hash, plain.hash);
  // Updating the units in another order gives the same bits, because units are independent.
  auto swapped = built;
  auto& update = swapped.bodies.back().steps;
  for (std::size_t k = 0; k + 1 < update.size(); ++k)
    if (std::holds_alternative<program::OptimizerStep>(update[k].op) &&
        std::holds_alternative<program::OptimizerStep>(update[k + 1].op)) {
      std::swap(update[k], update[k + 1]);
      break;
    }
  EXPECT_FALSE(swapped == built);
  EXPECT_EQ(train(a, s, 3, {}, &swapped).hash, plain.hash);
  // Summing the gradient norm over units in another order may at most change its rounding.
  auto reordered = built;
  auto& steps = reordered.bodies.back().steps;
  std::swap(steps[0], steps[1]);
  const Outcome summed = train(a, s, 3, {}, &reordered);
  EXPECT_NEAR(summed.norms[0], plain.norms[0], 1e-12 * plain.norms[0]);
}

TEST(Checkpoint, MovesBetweenLayouts) {
  const auto a = llama(true);
  const fs::path dir = fs::temp_directory_path() / fmt::format("molen_layouts_{}", ::getpid());
  fs::remove_all(dir);
  const std::string saved = hash_of_checkpoint(program::build(a, setting_of(3, 1, false, DType::kF32)), dir, true);
  EXPECT_FALSE(saved.empty());
  EXPECT_EQ(saved, hash_of_checkpoint(program::build(a, setting_of(2, 0, true, DType::kF32)), dir, false));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace molen::prove
