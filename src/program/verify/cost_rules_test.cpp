// Tests the verifier's rules of costs, which share with the builder's costs only the sizes of values and ranges and the
// scratch of kernels: both agree on every op of every kind of program, and an op that states other costs is refused,
// whether it is one op or all ops of a kind.
#include "program/verify/cost_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/test_sanitized.h"
#include "program/test_cases.h"
#include "program/values/of_op.h"

namespace molen::program {
namespace {

arch::Architecture tiny_alibi() {
  arch::Architecture a = tiny();
  a.position = arch::Position::kAlibi;
  return a;
}
arch::Architecture tiny_normed(arch::QkNorm norm) {
  arch::Architecture a = tiny();
  a.qk_norm = norm, a.norm = norm == arch::QkNorm::kAll ? arch::Norm::kLayerPlain : arch::Norm::kRms;
  return a;
}
// Six experts, of which two ranks have three each. With a capacity, not every choice has a row.
arch::Architecture tiny_experts(double capacity) {
  arch::Architecture a = tiny_sparse();
  a.experts->count = 6, a.experts->capacity = capacity;
  a.experts->bias_rate = capacity > 0 ? 0 : 0.001, a.experts->shared = capacity > 0 ? 0 : 2;
  return a;
}

// Returns models of every kind of part and parameter, in layouts on which the amounts of their operands depend.
std::vector<TestCase> cases_of_models() {
  std::vector<TestCase> all;
  const std::pair<const char*, arch::Architecture> models[] = {{"alibi", tiny_alibi()},
                                                               {"norms of heads", tiny_normed(arch::QkNorm::kHead)},
                                                               {"norms of all heads", tiny_normed(arch::QkNorm::kAll)},
                                                               {"gpt", tiny_gpt()},
                                                               {"experts", tiny_experts(0)},
                                                               {"experts with a capacity", tiny_experts(1.0)}};
  for (const auto& [name, a] : models)
    for (const bool narrow : {false, true})
      for (int layout = 0; layout < 8; ++layout) {
        Setting s = small_setting(1, 0);
        if (narrow) s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
        s.document_mask = narrow;
        s.mesh[mesh::Axis::kTp] = layout == 1 || layout == 2 ? 2 : 1;
        s.sequence_parallel = layout == 2;
        s.mesh[mesh::Axis::kCp] = layout == 3 || layout == 4 ? 2 : 1;
        s.context_form = layout == 4 ? ContextForm::kRing : ContextForm::kGather;
        s.mesh[mesh::Axis::kEp] = layout == 5 && a.sparse() ? 2 : 1;
        if (layout >= 6) {  // a pipeline whose backwards run in halves
          s.mesh[mesh::Axis::kPp] = 2, s.pipeline.stage = layout - 6;
          s.pipeline.schedule = ScheduleKind::kZbH1, s.pipeline.halves = true;
        }
        if (layout == 5) s.recompute = Recompute::full(), s.purpose = narrow ? Purpose::kEvaluate : Purpose::kTrain;
        if (a.qk_norm == arch::QkNorm::kAll && s.tensor()) continue;
        all.push_back({fmt::format("{}, layout {}{}", name, layout, narrow ? ", bf16" : ""), a, s});
      }
  return all;
}

std::vector<TestCase> cases() {
  std::vector<TestCase> all = all_test_cases();
  for (TestCase& c : cases_of_models()) all.push_back(std::move(c));
  return all;
}

std::string wrong_costs_of(const Program& p) {
  std::string all;
  for (const Finding& finding : verify(without_setting(p))) all += finding.text + "\n";
  return all;
}

TEST(CostRules, AgreeWithWhatIsDeclared) {
  std::set<std::string> kinds;
  std::set<arch::Part> parts;
  for (const TestCase& c : cases()) {
    const Program p = build(c.arch, c.setting);
    EXPECT_EQ(wrong_costs_of(p), "") << c.name;
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps) {
        kinds.insert(kind_of(step.op));
        if (const auto* part = std::get_if<Compute>(&step.op)) parts.insert(part->part);
      }
  }
  EXPECT_EQ(parts.size(), arch::kAllParts.size());
  EXPECT_GT(kinds.size(), 70u);
}

// A figure of an op, a change of it, and the words of the refusal.
struct Figure {
  std::string name;
  std::function<void(Step&)> change;
};
std::vector<Figure> figures() {
  return {{"model FLOPs", [](Step& s) { s.model_flops = Flops(s.model_flops.value * 2 + 8); }},
          {"hardware FLOPs", [](Step& s) { s.hardware_flops = Flops(s.hardware_flops.value * 2 + 8); }},
          {"bytes moved", [](Step& s) { s.moved = Bytes(s.moved.value * 2 + 8); }},
          {"bytes of scratch", [](Step& s) { s.scratch = Bytes(s.scratch.value * 2 + 64); }},
          {"epilogues", [](Step& s) {
             s.epilogues.empty() ? s.epilogues.push_back({Epilogue::kCopy, Bytes(8)})
                                 : void(s.epilogues.back().moved += Bytes(8));
           }}};
}

// Returns the words of a refusal that name the op, the figure and what the step states.
std::string words_of(const Step& step, const Figure& figure, const Step& changed) {
  const auto said = [&](const auto& stated, const auto& right) {
    return fmt::format("): its {} are {} where its operands ask for {};", figure.name, stated, right);
  };
  if (figure.name == "model FLOPs") return said(changed.model_flops.value, step.model_flops.value);
  if (figure.name == "hardware FLOPs") return said(changed.hardware_flops.value, step.hardware_flops.value);
  if (figure.name == "bytes moved") return said(changed.moved.value, step.moved.value);
  if (figure.name == "bytes of scratch") return said(changed.scratch.value, step.scratch.value);
  return said(text_of(changed.epilogues), text_of(step.epilogues));
}

// Calls f(program, body, op) for the first op of each kind. Ops that reduce and ops that add have other epilogues, and
// collectives of units others than those of activations.
void for_each_kind(const std::function<void(const Program&, std::size_t, std::size_t)>& f) {
  std::set<std::tuple<std::string, bool, bool, std::size_t>> seen;
  for (const TestCase& c : cases()) {
    const Program p = build(c.arch, c.setting);
    SCOPED_TRACE(c.name);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        const Step& step = p.bodies[b].steps[k];
        const bool of_unit = unit_of_step(p, step) >= 0, context = p.grid.sizes[mesh::Axis::kCp] > 1;
        if (seen.insert({kind_of(step.op), of_unit, context, step.epilogues.size()}).second) f(p, b, k);
      }
  }
  EXPECT_GT(seen.size(), 100u);
}

TEST(CostRules, RefuseAnOpThatStatesOtherCosts) {
  std::size_t turn = 0;
  for_each_kind([&](const Program& p, std::size_t b, std::size_t k) {
    for (const Figure& figure : figures()) {
      if (turn++ % kStride != 0) continue;
      Program q = p;
      figure.change(q.bodies[b].steps[k]);
      const Step &step = p.bodies[b].steps[k], &changed = q.bodies[b].steps[k];
      // The text carries the costs, as it does when somebody edits it.
      const std::string all = wrong_costs_of(parse(print(q), "edited"));
      EXPECT_NE(all.find("(" + kind_of(step.op)), std::string::npos) << all;
      EXPECT_NE(all.find(words_of(step, figure, changed)), std::string::npos) << words_of(step, figure, changed) << "\n"
                                                                              << all;
    }
  });
}

// A wrong formula of a declaration, or a mistake in the builder's costs, changes all ops of a kind in the same way.
TEST(CostRules, RefuseAMistakeThatEveryOpOfAKindHas) {
  std::size_t turn = 0;
  for_each_kind([&](const Program& p, std::size_t b, std::size_t k) {
    const std::string kind = kind_of(p.bodies[b].steps[k].op);
    for (const double factor : {0.5, 2.0}) {
      if (turn++ % kStride != 0) continue;
      Program q = p;
      for (Body& body : q.bodies)
        for (Step& step : body.steps)
          if (kind_of(step.op) == kind) {
            step.model_flops = Flops(step.model_flops.value * factor);
            step.hardware_flops = Flops(step.hardware_flops.value * factor);
            step.moved = Bytes(static_cast<std::int64_t>(static_cast<double>(step.moved.value) * factor));
          }
      EXPECT_NE(wrong_costs_of(q).find("where its operands ask for"), std::string::npos) << kind;
    }
  });
}

// A recomputation is no work of the model.
TEST(CostRules, OnlyTheHardwareComputesAgain) {
  Program p = build(tiny(), setting_of(1, 0, true, 4));
  std::size_t again = 0;
  for (Body& body : p.bodies)
    for (Step& step : body.steps)
      if (const auto* c = std::get_if<Compute>(&step.op);
          c && c->pass == Pass::kRecompute && step.hardware_flops.value > 0)
        step.model_flops = step.hardware_flops, ++again;
  ASSERT_GT(again, 0u);
  EXPECT_NE(wrong_costs_of(p).find("its model FLOPs are"), std::string::npos);
}

}  // namespace
}  // namespace molen::program
