// Tests unfused attention against the reference in double: all types, forms of positions, and documents.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "math/allocation.h"
#include "math/test_close.h"
#include "model/test_attention.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

using arch::Kernels;
using arch::Pass;
using i64 = std::int64_t;

struct Attended {
  at::Tensor o, lse, d_qkv;
};

// Runs attention with exactly the scratch that is declared for its kernels. ATen may allocate only from that scratch.
Attended attend(const arch::Architecture& a, Kernels kernels, const AttentionPath& path, const AttentionOperands& in) {
  const at::ScalarType type = scalar_type(path.compute);
  const at::Tensor qkv = in.qkv.to(type), d_o = in.d_o.to(type);
  Attended out{at::full({in.B * in.S, a.query_size()}, NAN, type), at::full({in.B, a.heads, in.S}, NAN, wide_of(path)),
               at::full({in.B * in.S, a.qkv_size()}, NAN, type)};
  arch::PartShape shape{in.B, in.S, 0, path.compute, 2, kernels};
  shape.documents = in.starts.defined();
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Workspace w(program::part_cost(a, arch::Part::kAttention, pass, shape).scratch.value);
    Context c = with_slopes({a, shape, w.scratch, true});
    if (in.starts.defined()) c.document_start = &in.starts;
    math::AllocationGuard::install();
    const i64 before = math::AllocationGuard::unserved();
    {
      const math::AllocationGuard guard(kernels == Kernels::kReference ? nullptr : &w.scratch);
      if (pass == Pass::kForward)
        attention_forward(c, qkv, out.o, out.lse);
      else
        attention_backward(c, d_o, qkv, out.o, out.lse, out.d_qkv);
    }
    EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "allocated beside the op's scratch";
    if (kernels != Kernels::kReference) {
      EXPECT_EQ(w.scratch.high_water(), w.scratch.capacity());
    }
  }
  return out;
}

// Some sequences are longer than the 16 rows that a thread takes at once, and some are shorter.
TEST(UnfusedAttention, IsTheReference) {
  const c10::InferenceMode inference;
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  for (const auto& a : test_architectures())
    for (const AttentionPath& path : {AttentionPath{"fp64", Kernels::kAten, DType::kF64, 0x1p-53},
                                      {"fp32", Kernels::kAten, DType::kF32, 0x1p-24},
                                      {"bf16", Kernels::kAten, DType::kBF16, 0x1p-8},
                                      {"fp16", Kernels::kAten, DType::kF16, 0x1p-11}})
      for (const bool documents : {false, true})
        for (const i64 sequence : {7, 70}) {
          SCOPED_TRACE(a.name + " " + path.name + (documents ? ", documents of " : ", ") + std::to_string(sequence));
          const AttentionOperands in(a, path, 2, sequence, documents);
          const Attended got = attend(a, Kernels("unfused"), path, in);
          const Attended want = attend(a, Kernels::kReference, kAttentionOracle, in);
          const auto same = [&](const at::Tensor& x, const at::Tensor& y, double factor) {
            return math::testing::close(doubles_of(x), doubles_of(y), {path.roundoff, sequence, factor, 1.0});
          };
          EXPECT_TRUE(same(got.o, want.o, 8)) << "o";
          EXPECT_TRUE(same(got.lse, want.lse, 8)) << "lse";
          EXPECT_TRUE(same(got.d_qkv, want.d_qkv, 16)) << "d_qkv";
        }
  at::set_num_threads(before);
}

TEST(UnfusedAttention, HasWholeSequences) {
  const auto a = test_architectures()[0];
  const AttentionOperands in(a, kAttentionPaths[2], 2, 8, false);
  Workspace w(std::int64_t{1} << 20);
  const std::vector<PositionRun> half{{0, 4}};
  at::Tensor o = at::empty({16, a.query_size()}, at::kFloat), lse = at::empty({2, a.heads, 8}, at::kFloat);
  const Context c{
      a,      {2, 8, 0, DType::kF32, 1, Kernels("unfused")}, w.scratch, true, {}, arch::Pass::kBackward, half, nullptr,
      nullptr};
  EXPECT_THROW(attention_forward(c, in.qkv, o, lse), Error);
}

}  // namespace
}  // namespace molen::model
