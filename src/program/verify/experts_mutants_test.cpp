// Tests programs with experts as a wrong pass would have made them. The verifier refuses each program and names the op.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "program/build/build.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

// Returns a program over context ranks, which sum loads, and tensor ranks, whose axis is wrong for that sum. It has two
// micro-batches.
Program over_ranks() {
  Setting s = setting_of(1, 0, false, 4);
  s.sequence = 24;
  s.mesh[mesh::Axis::kCp] = s.mesh[mesh::Axis::kTp] = 2;
  return build(tiny_sparse(), s);
}

using Steps = std::vector<Step>;
using StepEdit = std::function<void(Steps&, Steps::iterator)>;

// Edits the first step whose text begins with `text`, in the last body that has one. All edges and costs are computed
// again, so that nothing else reveals the edit.
Program mutant_of(Program p, const std::string& text, const StepEdit& edit) {
  for (auto body = p.bodies.rbegin(); body != p.bodies.rend(); ++body)
    for (auto step = body->steps.begin(); step != body->steps.end(); ++step) {
      if (!print_step(p, *step).starts_with(text)) continue;
      edit(body->steps, step);
      for (Body& b : p.bodies)
        for (Step& s : b.steps) s.after.clear();
      return pass::order_streams(pass::costs(std::move(p)));
    }
  throw Error("no step begins with {}", text);
}

void removed_op(Steps& steps, Steps::iterator step) {
  steps.erase(step);
}
void doubled_op(Steps& steps, Steps::iterator step) {
  const Step copy = *step;
  steps.insert(step, copy);
}
void over_tensor_ranks(Steps&, Steps::iterator step) {
  if (auto* gather = std::get_if<AllGather>(&step->op))
    gather->axis = Axis::kTp;
  else
    std::get<AllReduce>(step->op).axis = Axis::kTp;
}
void of_another_layer(Steps&, Steps::iterator step) {
  if (auto* sum = std::get_if<AllReduce>(&step->op))
    sum->layer = 1;
  else if (auto* gather = std::get_if<AllGather>(&step->op))
    gather->layer = 1;
  else
    std::get<Compute>(step->op).layer = 1;
}

void after_the_next(Steps&, Steps::iterator step) {
  std::iter_swap(step, step + 1);
}

// An edit of the first step whose text begins with `step`, and words of the finding that refuses it.
struct Mutant {
  std::string step;
  StepEdit edit;
  std::string says;
};
void expect_refused(const Program& sound, const Mutant& m) {
  const Program broken = mutant_of(sound, m.step, m.edit);
  ASSERT_FALSE(broken == sound) << m.step;
  std::string all;
  for (const Finding& f : verify(without_setting(broken))) all += f.text + "\n";
  EXPECT_NE(all.find(m.says), std::string::npos) << m.step << ": " << (all.empty() ? "accepted" : all);
  fmt::print("{:<44} {}\n", m.step, all.substr(0, all.find('\n')));
}

// Context ranks that share the sequences to which a capacity applies exchange the numbers of their choices, and drop
// choices, between the router and the experts.
TEST(ExpertsMutants, WhatLimitsExpertsTogetherMustBeThere) {
  auto a = tiny_sparse();
  a.experts->capacity = 0.75;
  Setting s = setting_of(1, 0, false, 4);
  s.sequence = 24;
  s.mesh[mesh::Axis::kCp] = s.mesh[mesh::Axis::kTp] = 2;
  const Program sound = build(a, s);
  ASSERT_TRUE(verify(sound).empty());
  const std::string counts = "all_gather axis=cp payload=counts layer=2", limit = "forward part=limit layer=2";
  for (const Mutant& m : std::vector<Mutant>{
           {counts, removed_op, "reads counts_all, which holds"},
           {counts, doubled_op, "writes counts_all again"},
           {counts, over_tensor_ranks, "what routers find in parts of a sequence must be joined over the axis cp"},
           {counts, of_another_layer, "reads counts, which holds counts of layer 2"},
           {counts, after_the_next, "reads counts_all, which holds counts_all of layer 1"},
           {limit, removed_op, "reads choice.2, which holds chosen"},
           {limit, doubled_op, "(forward limit, layer 2, micro-batch 1): runs a second time"},
           {limit, of_another_layer, "reads counts_all, which holds counts_all of layer 2"},
           {limit,
            [](Steps&, Steps::iterator step) {
              std::erase_if(step->operands, [](const Use& use) { return use.arg == Arg::kCounts; });
            },
            "where it needs [reads labels, counts; updates choice, scalars]"},
           {"forward part=route layer=2",
            [](Steps&, Steps::iterator step) {
              std::erase_if(step->operands, [](const Use& use) { return use.arg == Arg::kCounts; });
            },
            "(forward route, layer 2, micro-batch 1): has the operands"}}) {
    expect_refused(sound, m);
  }
}

// Two data-parallel ranks of a model whose experts have a capacity.
TEST(ExpertsMutants, WhatACapacityNeedsMustBeThere) {
  auto a = tiny_sparse();
  a.experts->capacity = 0.75;
  const Program sound = build(a, setting_of(2, 0, false, 4));
  ASSERT_TRUE(verify(sound).empty());
  const auto refusal = [&](const std::string& step, const StepEdit& edit) {
    const Program broken = mutant_of(sound, step, edit);
    EXPECT_FALSE(broken == sound) << step;
    std::string all;
    for (const Finding& f : verify(broken)) all += f.text + "\n";
    return all;
  };
  const auto few = refusal("reduce_scalars axis=dp first=5 count=3",
                           [](Steps&, Steps::iterator step) { std::get<ReduceScalars>(step->op).count = 2; });
  EXPECT_NE(few.find("uses the sum 7, which is not reduced over the ranks"), std::string::npos) << few;
  const auto unknown = refusal("forward part=expert_activation layer=2", [](Steps&, Steps::iterator step) {
    std::erase_if(step->operands, [](const Use& use) { return use.arg == Arg::kOffsets; });
  });
  EXPECT_NE(unknown.find("expert_activation"), std::string::npos) << unknown;
}

TEST(ExpertsMutants, AreRefusedEveryOne) {
  const std::string load = "all_reduce axis=cp payload=load layer=2", balance = "forward part=balance layer=2",
                    route = "forward part=route layer=2", dispatch = "forward part=dispatch layer=2",
                    combine = "forward part=combine layer=2", losses = "reduce_scalars axis=dp first=5 count=2";
  const Program sound = over_ranks();
  ASSERT_TRUE(verify(sound).empty());
  const std::vector<Mutant> mutants{
      {load, removed_op, "balance"},
      {load, doubled_op, "all_reduce"},
      {load, over_tensor_ranks, "what routers find in parts of a sequence must be joined over the axis cp"},
      {load, of_another_layer, "all_reduce"},
      {losses, removed_op, "uses the sum 5, which is not reduced over the ranks"},
      {losses, doubled_op, "reduces the sum 5 a second time"},
      {balance, removed_op, "forward balance, layer 2, micro-batch 1: is left out, and with it a loss"},
      {balance, doubled_op, "(forward balance, layer 2, micro-batch 1): runs a second time, and adds its losses again"},
      {balance, of_another_layer, "balance"},
      {route, removed_op, "forward route, layer 2, micro-batch 1: is left out, and with it a loss"},
      {route, doubled_op, "(forward route, layer 2, micro-batch 1): runs a second time, and adds its losses again"},
      {route, of_another_layer, "route"},
      {dispatch, removed_op, "expert_up"},
      {dispatch, of_another_layer, "dispatch"},
      {combine, removed_op, "holds"},
      {combine, of_another_layer, "combine"},
  };
  for (const Mutant& m : mutants) {
    expect_refused(sound, m);
  }
}

}  // namespace
}  // namespace molen::program
