// Tests that the verifier needs only the program, and that choices of the setting which the program alone cannot show
// are checked too.
#include "program/provenance/provenance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/test_sanitized.h"
#include "program/test_cases.h"
#include "program/values/of_setting.h"
#include "program/verify/inferred.h"

namespace molen::program {
namespace {

std::string lines_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) text += f.text + "\n";
  return text;
}

TEST(Alone, EveryKindOfProgramIsSoundWithoutItsSetting) {
  for (const TestCase& c : all_test_cases()) {
    SCOPED_TRACE(c.name);
    const Program p = build(c.arch, c.setting);
    EXPECT_EQ(lines_of(verify(without_setting(p))), "");
    EXPECT_EQ(lines_of(differs_from_setting(p)), "");
    EXPECT_EQ(inferred_traits(without_setting(p)), inferred_traits(p));
  }
}

// The traits that a program shows equal the traits that its setting asks for, in every trait that a rule uses.
TEST(Alone, TheTraitsOfAProgramAreThoseOfItsSetting) {
  for (const TestCase& c : all_test_cases()) {
    SCOPED_TRACE(c.name);
    const Setting& s = c.setting;
    const Traits asked = traits_of(s), has = inferred_traits(build(c.arch, s));
    EXPECT_EQ(asked.shards(), s.shards());
    EXPECT_EQ(asked.replica_group_size(), s.replica_group_size());
    EXPECT_EQ(asked.owns_part(), s.owns_part());
    EXPECT_EQ(asked.owns_part_of_shard(), s.own_over_dp && s.sharded_gradients());
    EXPECT_EQ(asked.sharded_gradients(), s.sharded_gradients());
    EXPECT_EQ(asked.sharded_parameters(), s.sharded_parameters());
    EXPECT_EQ(asked.sharded_rows(), s.sharded_rows());
    EXPECT_EQ(asked.ring(), s.ring());
    EXPECT_EQ(asked.tokens(), s.tokens());
    EXPECT_EQ(asked.head_chunks(), s.head_chunks());
    for (const Axis axis : kAllAxes) EXPECT_EQ(asked.narrow_over(axis), s.narrow_over(axis));
    EXPECT_EQ(has.grid, asked.grid);
    EXPECT_EQ(has.rows, asked.rows);
    EXPECT_EQ(has.purpose, asked.purpose);
    EXPECT_EQ(has.compute, asked.compute);
    EXPECT_EQ(has.documents, asked.documents);
    EXPECT_EQ(has.ring(), asked.ring());
    EXPECT_EQ(has.materializes_parameters(), asked.materializes_parameters());
    if (has.trains()) {
      EXPECT_EQ(has.micro_batches, asked.micro_batches);
      EXPECT_EQ(has.positions, asked.positions);
      EXPECT_EQ(has.halves, asked.halves);
      EXPECT_EQ(has.reduces_each_micro_batch(), asked.reduces_each_micro_batch());
      EXPECT_EQ(has.master, asked.master);
    }
  }
}

// Checks a program against each other setting for the same model, as if a file were given to the wrong configuration.
TEST(Alone, AProgramOfAnotherSettingIsRefusedByItsProvenanceAlone) {
  const std::vector<TestCase> all = all_test_cases();
  std::vector<Program> built;
  for (const TestCase& c : all) built.push_back(build(c.arch, c.setting));
  int refused = 0, same = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (i == k || all[i].arch.name != all[k].arch.name || all[i].arch.layers != all[k].arch.layers) continue;
      Program p = built[i];
      p.setting = all[k].setting;
      const auto found = differs_from_setting(p);
      // These choices may differ because no op shows them: how many units ahead parameters are gathered, what is
      // computed again, the layers of a unit, and the order of a pipeline.
      Setting alike = p.setting;
      alike.prefetch = all[i].setting.prefetch, alike.recompute = all[i].setting.recompute;
      alike.unit_layers = all[i].setting.unit_layers, alike.pipeline.schedule = all[i].setting.pipeline.schedule;
      alike.pipeline.layers = all[i].setting.pipeline.layers, alike.kernels = all[i].setting.kernels;
      if (alike.purpose == Purpose::kEvaluate) alike.pipeline.halves = all[i].setting.pipeline.halves;
      EXPECT_EQ(found.empty(), alike == all[i].setting) << all[i].name << " for " << all[k].name << "\n"
                                                        << lines_of(found);
      (found.empty() ? same : refused) += 1;
    }
  fmt::print("{} programs beside other settings are refused, {} are of the same layout\n", refused, same);
  EXPECT_GT(refused, 1000);
}

// Tries every deletion of an op, every exchange of neighbours and every other buffer of an operand, with the setting
// and without it. An edit that the verifier accepts without the setting is also accepted with the setting.
TEST(Alone, EditsAreRefusedWithoutTheSetting) {
  const std::size_t stride = 2 * long_stride() + 1;
  std::size_t turn = 0, refused = 0, accepted = 0;
  const auto judge = [&](const Program& q, const std::string& what) {
    const bool alone = !verify(without_setting(q)).empty(), beside = !differs_from_setting(q).empty();
    EXPECT_TRUE(alone || !beside) << what << "\n" << lines_of(differs_from_setting(q));
    (alone ? refused : accepted) += 1;
  };
  for (const TestCase& c : all_test_cases()) {
    const Program p = build(c.arch, c.setting);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        if (turn++ % stride != 0) continue;
        const std::string what =
            c.name + ": " + p.bodies[b].name + fmt::format(" %{} ", k) + print_step(p, p.bodies[b].steps[k]);
        judge(without(p, b, k), "without " + what);
        Program q = p;
        if (k > 0) std::swap(q.bodies[b].steps[k - 1], q.bodies[b].steps[k]);
        if (k > 0) judge(q, "before the one before: " + what);
        q = p;
        for (Use& use : q.bodies[b].steps[k].operands) {
          const int old = use.buffer;
          use.buffer = static_cast<int>(turn % p.buffers.size());
          if (use.buffer != old) judge(q, "with " + p.buffers[static_cast<std::size_t>(use.buffer)].name + ": " + what);
          use.buffer = old;
        }
      }
  }
  fmt::print("{} edits: {} are refused without the setting, {} accepted with it and without it\n", refused + accepted,
             refused, accepted);
  EXPECT_GT(refused * stride, 50000U);
}

using Edit = std::function<void(Program&)>;

void for_each_step(Program& p, const std::function<void(Step&)>& f) {
  for (Body& body : p.bodies)
    for (Step& step : body.steps) f(step);
}

// These programs are sound but differ from what their setting asked for.
TEST(Alone, WhatOnlyTheSettingRefuses) {
  Setting s = small_setting(2, 1);
  s.document_mask = true;
  const Program p = build(tiny(), s);
  const std::vector<std::pair<Edit, std::string>> edits{
      {[](Program& q) { for_each_step(q, [](Step& step) { step.attributes.threads *= 3; }); },
       "(forward embed): has the attributes [rows=2x144 compute=fp32 kernel=fused threads=3] where the setting asks "
       "for "
       "[rows=2x144 compute=fp32 kernel=fused threads=1]"},
      {[](Program& q) { q.setting.global_batch *= 2; },
       "the positions of the batch: the program has 3456 where its setting says 6912"},
      {[](Program& q) { q.setting.head_chunk = 96; },
       "the rows of a chunk of the head: the program has 128 where its setting says 96"},
      {[](Program& q) { q.setting.optimizer = "lion"; }, "updates by adamw where the setting says lion"},
      {[](Program& q) { q.setting.zero = 0; },
       "the grid of ranks: the program has another mesh, order or sharding than"},
      {[](Program& q) { q.setting.document_mask = false; },
       "attention within documents: the program has yes where its setting says no"},
      {[](Program& q) { q.setting.reduce = DType::kBF16; },
       "the type of gradients in messages: the program has fp32 where its setting says bf16"},
      {[](Program& q) { q.setting.master = DType::kBF16; },
       "the type of master weights: the program has fp32 where its setting says bf16"},
      {[](Program& q) { q.setting.offload.optimizer = true; },
       "optimizer states on the host: the program has no where its setting says yes"},
      {[](Program& q) { q.setting.pipeline.halves = true; },
       "backwards in halves: the program has no where its setting says yes"},
      {[](Program& q) { q.setting.purpose = Purpose::kEvaluate; },
       "the purpose: the program has a training where its setting says an evaluation"},
  };
  for (const auto& [edit, says] : edits) {
    Program q = p;
    edit(q);
    EXPECT_EQ(lines_of(verify(pass::costs(q))), "") << says;
    EXPECT_NE(lines_of(differs_from_setting(q)).find(says), std::string::npos) << says << "\n"
                                                                               << lines_of(differs_from_setting(q));
    EXPECT_FALSE(check(q).empty());
    EXPECT_THROW(require_sound(q, "test"), UsageError);
  }
}

// These programs do not say how large their batch is, or state an impossible size.
TEST(Alone, SizesThatNoOpSays) {
  const auto says = [](const Edit& edit) {
    Program p = build(tiny(), small_setting(2, 1));
    edit(p);
    return lines_of(verify(without_setting(p)));
  };
  const auto each = [](const std::function<void(Attributes&)>& f) -> Edit {
    return [=](Program& p) { for_each_step(p, [&](Step& step) { f(step.attributes); }); };
  };
  EXPECT_NE(says(each([](Attributes& a) { a.rows = {}; })).find("no op says how many rows a micro-batch has"),
            std::string::npos);
  const auto wide = each([](Attributes& a) { a.rows.sequences <<= a.rows.sequences > 0 ? 41 : 0; });
  EXPECT_NE(says(wide).find("which are more than 1099511627776"), std::string::npos) << says(wide);
  EXPECT_NE(says(each([](Attributes& a) { a.positions = 0; })).find("no op says how many positions the batch has"),
            std::string::npos);
  EXPECT_NE(
      says(each([](Attributes& a) { a.positions += a.positions > 0; })).find("no whole number of sequences of 144"),
      std::string::npos);
  EXPECT_NE(says(each([](Attributes& a) { a.positions *= std::int64_t{1} << 40; })).find("than a program can have"),
            std::string::npos);
}

TEST(Alone, StagesOfTwoSettings) {
  Setting s = small_setting(1, 0);
  s.mesh[mesh::Axis::kPp] = 2;
  std::vector<Program> stages = build_stages(tiny(), s);
  EXPECT_EQ(lines_of(check_world(stages)), "");
  stages[1].setting.prefetch = 3;
  EXPECT_EQ(lines_of(verify_world(stages)), "");
  EXPECT_EQ(lines_of(check_world(stages)), "stage 1 was built for another setting than stage 0\n");
}

}  // namespace
}  // namespace molen::program
