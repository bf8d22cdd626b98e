// Tests which ops wait for each other when they use tiles of one buffer: the edges that order_streams adds, and the
// pairs in which the verifier misses one.
#include "program/build/latest_ops.h"

#include <gtest/gtest.h>

#include "program/test_cases.h"
#include "program/test_edit.h"
#include "program/verify/races.h"

namespace molen::program {
namespace {

Program in_two_tiles() {
  arch::Architecture sparse = tiny_sparse();
  sparse.experts->count = 4, sparse.experts->dense_layers = 0;
  Setting s = small_setting(2, 0);
  s.mesh[mesh::Axis::kDpShard] = 1, s.mesh[mesh::Axis::kEp] = 2, s.expert_tiles = 2;
  return build(sparse, s);
}

Step step_of(const Program& p, const Op& op) {
  for (const Body& body : p.bodies)
    for (const Step& step : body.steps)
      if (step.op == op) return step;
  throw Error("no such op");
}

AllToAll exchange(Payload payload, std::int64_t layer, std::int64_t tile) {
  return {Axis::kEp, payload, layer, tile};
}

// Lets the up projection of tile 0 of layer 0 run, then an exchange that writes its rows into the same buffer, and
// returns whether the exchange must wait for the projection.
bool waits(const AllToAll& other) {
  Program p = in_two_tiles();
  const Step up = step_of(p, Compute{arch::Part::kExpertUp, Pass::kForward, 0, 0});
  Step moved = step_of(p, other);
  moved.operand(Arg::kTo).buffer = up.operand(Arg::kX).buffer;
  std::erase_if(moved.operands, [](const Use& use) { return use.arg != Arg::kTo; });
  p.bodies = {{"one", {up, moved}}};
  p.schedule = {{0, 0}};
  for (Step& step : p.bodies[0].steps) step.after.clear(), step.scratch = Bytes();
  const bool races = !unordered(p, expand(p)).empty();
  const Program ordered = pass::order_streams(p);
  EXPECT_EQ(!ordered.bodies[0].steps[1].after.empty(), races);
  EXPECT_TRUE(unordered(ordered, expand(ordered)).empty());
  return races;
}

TEST(LatestOps, TilesOfTheSameRowsAreApart) {
  EXPECT_TRUE(waits(exchange(Payload::kExpertRows, 0, 0)));
  EXPECT_FALSE(waits(exchange(Payload::kExpertRows, 0, 1)));
}

TEST(LatestOps, TilesOfOtherRowsAreNot) {
  EXPECT_TRUE(waits(exchange(Payload::kExpertRows, 1, 1))) << "another layer";
  EXPECT_TRUE(waits(exchange(Payload::kExpertOut, 0, 1))) << "rows at the tokens";
}

}  // namespace
}  // namespace molen::program
