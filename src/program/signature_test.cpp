// Tests the operands of the steps of a ring, which the builder, the verifier and the executor use.
#include "program/signature.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program/build.h"
#include "program/test_edit.h"

namespace molen::program {
namespace {

Program ring_of_3() {
  Setting s;
  s.mesh[mesh::Axis::kCp] = 3;
  s.context_form = ContextForm::kRing;
  s.sequence = 24;
  return build(tiny(), s);
}

std::string text_of(const Signature& s) {
  const auto names = [](const std::vector<Operand>& operands) {
    std::vector<std::string> all;
    for (const Operand& o : operands) all.push_back(fmt::format("{}.{}/{}", name_of(o.value), o.layer, o.step));
    return fmt::format("{}", fmt::join(all, " "));
  };
  return names(s.reads) + " -> " + names(s.writes);
}

TEST(Signature, TheStepsOfARing) {
  const Program p = ring_of_3();
  const auto attention = [&](ComputePass pass, std::int64_t step) {
    return text_of(signature(p, Compute{arch::Part::kAttention, pass, 1, step, false}, -1));
  };
  const auto shift = [&](Moves moves, std::int64_t step) {
    return text_of(signature(p, Shift{Axis::kCp, moves, 1, step}, -1));
  };
  const auto forward = ComputePass::kForward, backward = ComputePass::kBackward;
  // Forward: each step reads the received keys, and the partial output over the keys before them.
  EXPECT_EQ(attention(forward, 0), "qkv.1/0 -> attn_part.1/0 lse_part.1/0");
  EXPECT_EQ(attention(forward, 1), "qkv.1/0 keys.1/1 attn_part.1/0 lse_part.1/0 -> attn_part.1/1 lse_part.1/1");
  EXPECT_EQ(attention(forward, 2), "qkv.1/0 keys.1/2 attn_part.1/1 lse_part.1/1 -> attn.1/0 lse.1/0");
  EXPECT_EQ(shift(Moves::kKeys, 1), "qkv.1/0 -> keys.1/0 keys.1/1");
  EXPECT_EQ(shift(Moves::kKeys, 2), "keys.1/1 -> keys.1/2");
  // Backward: gradients of keys go around until they are home, where the gradients of queries wait for them.
  const std::string kept = "d_attn.1/0 qkv.1/0 attn.1/0 lse.1/0";
  EXPECT_EQ(attention(backward, 0), kept + " -> d_query.1/0 d_keys.1/0");
  EXPECT_EQ(attention(backward, 1), kept + " keys.1/1 d_query.1/0 -> d_query.1/1 d_keys.1/1");
  EXPECT_EQ(attention(backward, 2), kept + " keys.1/2 d_query.1/1 -> d_query.1/2 d_keys.1/2");
  EXPECT_EQ(shift(Moves::kDKeys, 1), "d_keys.1/0 -> d_keys_in.1/1");
  EXPECT_EQ(shift(Moves::kDKeys, 2), "d_keys.1/1 d_keys_in.1/1 -> d_keys_in.1/2");
  EXPECT_EQ(shift(Moves::kDKeys, 3), "d_keys.1/2 d_keys_in.1/2 d_query.1/2 -> d_keys_in.1/3 d_qkv.1/0");
}

}  // namespace
}  // namespace molen::program
