// Tests the traffic of ranks that run a program: what each rank's communicators count, and what a run reports.
#include "launch/traffic.h"

#include <gtest/gtest.h>

#include <utility>

#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Axis;

// The times are computed by hand for two axes on one stream, with the first op of each. The first step and a skipped
// step do not count.
TEST(Communication, IsOfTheAxesOfThePlan) {
  Layout layout{2, 2};
  layout.replicas = 2;
  const auto p = program::build(llama(false), setting_of(layout, DType::kF64));
  on_ranks(4, [&](comm::Communicator& world) {
    const exec::Executor executor(p, world.rank(), &world, {});
    launch::Communication communication(executor);
    if (world.rank() != 0) return;
    EXPECT_EQ(communication.axes(), Json::array());
    EXPECT_EQ(communication.text(), "");
    const auto step = [&](double shard_s, double replicate_s) {
      program::Timeline t;
      t.ops.assign(executor.ops().size(), {100.0, 100.0});
      bool computes = false, shards = false, replicates = false;
      for (std::size_t i = 0; i < t.ops.size(); ++i) {
        const program::Step& op = *executor.ops()[i].step;
        if (op.stream == program::Stream::kCompute && !std::exchange(computes, true)) t.ops[i] = {0.0, 1.0};
        const auto axis = program::axis_of(op.op);
        if (axis == Axis::kShard && !std::exchange(shards, true)) t.ops[i] = {0.5, 0.5 + shard_s};
        if (axis == Axis::kReplicate && !std::exchange(replicates, true)) t.ops[i] = {3.0, 3.0 + replicate_s};
      }
      return t;
    };
    communication.add(step(9.0, 9.0), false);
    EXPECT_EQ(communication.axes()[0]["seconds"], 9.0) << "while there is no other";
    communication.add(step(1.0, 0.5), false);
    communication.add(step(9.0, 9.0), true);
    communication.add(step(3.0, 1.5), false);
    EXPECT_EQ(communication.axes(), Json::parse(R"([{"axis": "dp_shard", "seconds": 2.0, "hidden": 0.25},
                                                    {"axis": "dp_replicate", "seconds": 1.0, "hidden": 0.0}])"));
    EXPECT_EQ(communication.text(), "dp_shard 2.00 s, 25.0% hidden; dp_replicate 1.00 s, 0.0% hidden");
  });
}

// A kernel does exactly the epilogues that its op declares, because predictions count the declared ones.
TEST(Epilogues, OfAnOpAreThoseThatItDeclares) {
  Layout layout{2, 2};
  layout.micro = 1;  // several micro-batches, so that gradients are added up
  const auto sound = program::build(llama(false), setting_of(layout, DType::kF64));
  const auto failure = [&](const std::function<void(program::Step&)>& edit) {
    auto p = sound;
    for (auto& body : p.bodies)
      for (auto& step : body.steps)
        if (step.updates(program::Arg::kTo) && std::holds_alternative<program::ReduceScatter>(step.op)) edit(step);
    std::array<std::string, 2> messages;
    on_ranks(2, [&](comm::Communicator& world) {
      exec::Executor executor(p, world.rank(), &world, {});
      launch::initialize_parameters(executor, 1, 1);
      exec::StepInput input;
      input.load = [&](const exec::MicroBatch& to) {
        const auto tokens = static_cast<std::size_t>(p.setting.tokens());
        std::fill_n(to.ids, tokens, 1), std::fill_n(to.labels, tokens, 2);
        return static_cast<std::int64_t>(tokens);
      };
      try {
        (void)executor.run(input);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    return messages[0];
  };
  EXPECT_EQ(failure([](program::Step&) {}), "");
  EXPECT_NE(
      failure([](program::Step& step) { step.epilogues.clear(); }).find("the epilogue 'add' ran and is not declared"),
      std::string::npos);
  EXPECT_NE(failure([](program::Step& step) {
              step.epilogues.push_back({program::Epilogue::kCopy, Bytes(1)});
            }).find("the epilogue 'copy' is declared and did not run"),
            std::string::npos);
  EXPECT_NE(
      failure([](program::Step& step) { step.epilogues.at(0).moved += Bytes(8); }).find("bytes and is declared with"),
      std::string::npos);
}

// Ranks with smaller shards or fewer rows move less than the first rank. Each rank's communicators count its own
// traffic, and not what the first rank's program would say. prove/proof.cpp compares the counts on every rank.
TEST(Traffic, OfUnevenRanksIsTheirOwn) {
  Layout states{3, 2};
  states.replicas = 2, states.own_over_dp = true;
  Layout rows{1, 0};
  rows.tensor = rows.stages = 2, rows.rows = true;
  rows.micro = 1;
  for (const Layout& layout : {states, rows}) {
    const auto stages = program::build_stages(llama(false), setting_of(layout, DType::kF64));
    train_threads(stages, 1);
    const auto& p = stages.front();
    const auto ops = program::expand(p);
    mesh::PerAxis last;
    for (const auto axis : {mesh::Axis::kDpShard, mesh::Axis::kTp}) last[axis] = p.setting.mesh[axis] - 1;
    EXPECT_NE(program::calls_of(p, ops, {}), program::calls_of(p, ops, last));
  }
}

}  // namespace
}  // namespace molen::prove
