// Tests the operands of the steps of a ring, which the builder, the verifier and the executor use.
#include "program/values/signature.h"
#include "program/values/of_setting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program/build/build.h"
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

// Returns each operand as "reads qkv.1/0" or, if an update makes another value, "updates attn_part.1/0>attn_part.1/1".
std::string text_of(const Signature& s) {
  std::vector<std::string> all;
  for (const Operand& o : s.operands) {
    const auto value = [](const Operand& of) { return fmt::format("{}.{}/{}", name_of(of.value), of.layer, of.step); };
    all.push_back(fmt::format("{} {}{}", name_of(o.access), o.before ? value(o.as_found()) + ">" : "", value(o)));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

TEST(Signature, TheStepsOfARing) {
  const Program p = ring_of_3();
  const auto attention = [&](Pass pass, std::int64_t step) {
    return text_of(signature(p, Compute{arch::Part::kAttention, pass, 1, step}, -1));
  };
  const auto shift = [&](Payload payload, std::int64_t step) {
    return text_of(signature(p, RingExchange{Axis::kCp, payload, 1, step}, -1));
  };
  const auto forward = Pass::kForward, backward = Pass::kBackward;
  // Forward: each step reads the received keys, and adds to the output over the earlier keys.
  EXPECT_EQ(attention(forward, 0), "reads qkv.1/0, writes attn_part.1/0, writes lse_part.1/0");
  EXPECT_EQ(attention(forward, 1),
            "reads qkv.1/0, reads keys.1/1, updates attn_part.1/0>attn_part.1/1, updates lse_part.1/0>lse_part.1/1");
  EXPECT_EQ(attention(forward, 2),
            "reads qkv.1/0, reads keys.1/2, updates attn_part.1/1>attn.1/0, updates lse_part.1/1>lse.1/0");
  EXPECT_EQ(shift(Payload::kKeys, 1), "reads qkv.1/0, writes keys.1/0, writes keys.1/1");
  EXPECT_EQ(shift(Payload::kKeys, 2), "reads keys.1/1, writes keys.1/2");
  // Backward: gradients of keys are passed around until they are on the rank of the keys, which holds the gradients of
  // its queries until then.
  const std::string kept = "reads d_attn.1/0, reads qkv.1/0, reads attn.1/0, reads lse.1/0, ";
  EXPECT_EQ(attention(backward, 0), kept + "writes d_query.1/0, writes d_keys.1/0");
  EXPECT_EQ(attention(backward, 1), kept + "reads keys.1/1, updates d_query.1/0>d_query.1/1, writes d_keys.1/1");
  EXPECT_EQ(attention(backward, 2), kept + "reads keys.1/2, updates d_query.1/1>d_query.1/2, writes d_keys.1/2");
  EXPECT_EQ(shift(Payload::kDKeys, 1), "consumes d_keys.1/0, writes d_keys_in.1/1");
  EXPECT_EQ(shift(Payload::kDKeys, 2), "consumes d_keys.1/1, updates d_keys_in.1/1>d_keys_in.1/2");
  EXPECT_EQ(shift(Payload::kDKeys, 3),
            "consumes d_keys.1/2, updates d_keys_in.1/2>d_keys_in.1/3, updates d_query.1/2>d_qkv.1/0");
}

// In bf16 the sums of a ring are in fp32: the result is rounded into another buffer.
TEST(Signature, TheLastStepOfANarrowRingRounds) {
  Setting s = ring_of_3().setting;
  s.compute = DType::kBF16;
  const Program p = build(tiny(), s);
  EXPECT_EQ(text_of(signature(p, Compute{arch::Part::kAttention, Pass::kForward, 1, 2}, -1)),
            "reads qkv.1/0, reads keys.1/2, consumes attn_part.1/1, writes attn.1/0, updates lse_part.1/1>lse.1/0");
  EXPECT_EQ(text_of(signature(p, RingExchange{Axis::kCp, Payload::kDKeys, 1, 3}, -1)),
            "consumes d_keys.1/2, updates d_keys_in.1/2>d_keys_in.1/3, reads d_query.1/2, writes d_qkv.1/0");
}

// Checks the access to each operand, for ops that have operands in the buffers of others.
TEST(Signature, SumsAreUpdatedOrConsumed) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 1;
  s.global_batch = 2;
  s.sequence = 16;
  const Program p = build(tiny(), s);
  EXPECT_EQ(text_of(signature(p, ReduceScatter{Axis::kDp}, 1)), "consumes grad.1/0, writes grad.1/0");
  EXPECT_EQ(signature(p, ReduceScatter{Axis::kDp}, 1).operand(Arg::kTo).within, Arg::kFrom);
  EXPECT_EQ(signature(p, AllGather{Axis::kDp}, 1).operand(Arg::kTo).within, Arg::kFrom);
  EXPECT_EQ(text_of(signature(p, OptimizerStep{}, 1)),
            "reads grad.1/0, reads scalars.-1/0, updates param.1/0, updates m.1/0, updates v.1/0");
  EXPECT_EQ(
      text_of(signature(p, Compute{arch::Part::kNormUp, Pass::kBackward, 1, -1}, -1)),
      "reads d_up.1/0, reads mid.1/0, reads stats2.1/0, reads param.2/0, updates d_x.2/0>d_mid.1/0, writes grad.2/0");
  EXPECT_TRUE(signature(p, Compute{arch::Part::kNormUp, Pass::kBackward, 1, -1}, -1).operand(Arg::kGrad).may_add);
}

}  // namespace
}  // namespace molen::program
