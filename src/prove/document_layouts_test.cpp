// Tests attention within documents. It equals a model that gets each document as a sequence of its own, and it is the
// same in every layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::ContextForm;
using program::ScheduleKind;

constexpr std::int64_t kDocumentSequence = 24;  // a multiple of 4 and 6

Layout masked(Layout l) {
  l.documents = true;
  l.sequence = kDocumentSequence;
  return l;
}
Layout in_context(int ranks, ContextForm form, Layout l) {
  l.context = ranks;
  l.form = form;
  return masked(l);
}
Layout in_stages(int stages, ScheduleKind kind, Layout l) {
  l.stages = stages;
  l.pipeline = program::pipeline_of(kind, kind == ScheduleKind::kInterleaved ? 2 : 1);
  return masked(l);
}
Layout with_tensor_ranks(bool rows, Layout l) {
  l.tensor = 2;
  l.rows = rows;
  return masked(l);
}

arch::Architecture gpt_alibi() {
  auto a = gpt();
  a.heads = a.kv_heads = 4;
  a.ffn = 52;
  a.position = arch::Position::kAlibi;
  return a;
}

program::Setting documents_alone(DType compute, bool documents = true) {
  auto s = setting_of(1, 0, false, compute, 3);
  s.sequence = kDocumentSequence;
  s.document_mask = documents;
  return s;
}

// RoPE and ALiBi depend on distances alone, so documents may begin anywhere. The test compares three documents in one
// sequence with each document as a sequence of its own, in the same order.
TEST(Documents, AreSequencesOfTheirOwn) {
  constexpr std::int64_t kShort = kDocumentSequence / 3;
  for (const auto& a : {llama(true), gpt_alibi()}) {
    auto apart = documents_alone(DType::kF64, false);
    apart.sequence = kShort;
    apart.global_batch *= 3;
    apart.micro_batch *= 3;
    const ReadSamples read = synthetic_samples(apart, a.vocabulary);
    const ReadSamples packed = [&](std::int64_t first, std::int64_t count, const exec::MicroBatch& to) {
      for (std::int64_t i = 0; i < 3 * kDocumentSequence; ++i)
        to.document_start[i] = static_cast<std::int32_t>(i % kDocumentSequence / kShort * kShort);
      return read(3 * first, 3 * count, {to.ids, to.labels});
    };
    Trial trial;
    const auto world = comm::make_self();
    expect_same_model(prove(program::build(a, apart), *world, read, trial),
                      prove(program::build(a, documents_alone(DType::kF64)), *world, packed, trial));
  }
}

class DocumentLayouts : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() {
    std::vector<arch::Architecture> of{llama(true), gpt_alibi()};
    for (auto& a : of) a.layers = std::max<std::int64_t>(a.layers, GetParam().stages * GetParam().pipeline.chunks);
    return of;
  }
  static std::vector<program::Program> stages_of(const arch::Architecture& a, DType compute) {
    auto setting = setting_of(GetParam(), compute);
    if (compute == DType::kBF16) setting.kernels = arch::Kernels::kAten;
    return proved_stages(a, setting);
  }
};

TEST_P(DocumentLayouts, SameModelInDouble) {
  for (const auto& a : models()) {
    SCOPED_TRACE(name_of(a.family));
    const Outcome& one = train_alone(program::build(a, documents_alone(DType::kF64)), proof_steps());
    expect_same_model(one, train_threads(stages_of(a, DType::kF64), proof_steps()));
    EXPECT_GT(
        difference(one, train_alone(program::build(a, documents_alone(DType::kF64, false)), proof_steps())).gradients,
        1e-3);
  }
}

TEST_P(DocumentLayouts, OneStepWithinTheBound) {
  for (const auto compute : {DType::kF32, DType::kBF16})
    for (const auto& a : models()) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(a.family), name_of(compute)));
      auto one = documents_alone(compute);
      if (compute == DType::kBF16) one.kernels = arch::Kernels::kAten;
      const auto stages = stages_of(a, compute);
      const Outcome& reference = train_alone(program::build(a, one), 1);
      const Bounds bounds =
          compute == DType::kF32
              ? bounds_of(stages.front())
              : bounds_beside(train_alone(program::build(a, documents_alone(DType::kF64)), 1), reference);
      const Difference d = difference(reference, train_threads(stages, 1));
      ASSERT_LT(bounds.gradients, 0.25);  // a lost gradient is off by 1
      expect_within(d, bounds);
    }
}

TEST_P(DocumentLayouts, TheDeadAreDead) {
  const auto stages = stages_of(models()[0], DType::kF32);
  expect_dead_buffers_unread(stages);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, DocumentLayouts,
    ::testing::ValuesIn(
        suite::covering({masked({1, 0, false, 3}), masked({2, 3, true, 2}), with_tensor_ranks(true, {2, 1, false, 1}),
                         masked(Layout{2, 0}.recomputing("attention/2")), in_context(2, ContextForm::kGather, {1, 1}),
                         in_context(3, ContextForm::kRing, {1, 0}),
                         with_tensor_ranks(false, in_context(2, ContextForm::kRing, {1, 2, false, 1})),
                         in_stages(3, ScheduleKind::k1f1b, {1, 0}), in_stages(2, ScheduleKind::kInterleaved, {2, 3}),
                         in_stages(3, ScheduleKind::kZbH1, {1, 0, true}), in_stages(3, ScheduleKind::kZbV, {1, 0}),
                         in_stages(3, ScheduleKind::kGpipe, in_context(2, ContextForm::kRing, {1, 0}))})));

TEST(DocumentMutants, AreRefused) {
  const std::string sound = program::print(program::build(llama(true), setting_of(masked({2, 0}), DType::kF64)));
  for (const auto& [where, from, to, says] : std::vector<std::array<std::string, 4>>{
           {"forward part=attention layer=1", ",documents:documents{dp_shard=shard:batch}", "",
            "no operand 'documents'; it reads qkv, documents; writes y, lse"},
           {"forward part=attention layer=1", ",documents:documents", ",documents:labels", "where it needs documents"},
           {"backward part=attention layer=0", ",documents:documents", ",documents:ids", "where it needs documents"},
           {"load_batch", ",documents:documents{dp_shard=shard:batch}", "",
            "no operand 'documents'; it updates scalars; writes ids, labels, documents"}}) {
    const std::string broken = program::rewrite(sound, {where}, from, to);
    ASSERT_NE(broken, sound);
    const std::string all = program::refusal(broken);
    EXPECT_NE(all.find(says), std::string::npos) << where << "\n" << all;
  }
}

}  // namespace
}  // namespace molen::prove
