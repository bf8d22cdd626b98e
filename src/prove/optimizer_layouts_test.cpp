// Tests that every optimizer computes the same model in all layouts, and that its states move between them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "optim/update.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

program::Setting updated_by(std::string_view kind, program::Setting s) {
  s.optimizer = std::string(kind);
  return s;
}

// The layouts in which an optimizer's states are whole, sharded, sharded twice, and on the host.
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

class Optimizers : public ::testing::TestWithParam<std::string_view> {};

// Ten steps in fp64 against one rank. A model without biases: the gradient of a key's bias is zero except for rounding,
// and the sign of rounding is a whole step of Lion.
TEST_P(Optimizers, SameModelInAllLayouts) {
  for (const bool tied : {false, true}) {
    const auto a = llama(tied);
    const Outcome& one =
        train_alone(program::build(a, updated_by(GetParam(), setting_of(1, 0, false, DType::kF64, 3))), 10);
    for (const Layout& layout : state_layouts()) {
      const auto p = program::build(a, updated_by(GetParam(), setting_of(layout, DType::kF64)));
      program::require_sound(p, "test");
      SCOPED_TRACE(
          fmt::format("{} shards x {} replicas, ZeRO-{}, tied {}", layout.shards, layout.replicas, layout.zero, tied));
      expect_same_model(one, train_threads(p, 10));
    }
  }
}

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
  const auto layout = [&](int ranks, int zero, int tensor = 1) {
    Layout l{ranks, zero};
    l.tensor = tensor;
    return program::build(a, updated_by(GetParam(), setting_of(l, DType::kF32)));
  };
  for (const program::Program& from : {layout(3, 1), layout(2, 3, 2)}) {
    const std::string saved = hash_of_checkpoint(from, dir, true);
    for (const int zero : {0, 1, 2, 3}) EXPECT_EQ(saved, hash_of_checkpoint(layout(2, zero), dir, false)) << zero;
    for (const int zero : {0, 2}) EXPECT_EQ(saved, hash_of_checkpoint(layout(zero == 0 ? 1 : 2, zero, 2), dir, false));
    std::filesystem::remove_all(dir);
  }
}

// A rule is more than its name: each gives other weights.
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
