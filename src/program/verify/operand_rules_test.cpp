// Tests that the verifier's operand rules and the builder's table of operands, which share no code, agree, and that the
// verifier refuses a mistake in the builder's table.
#include "program/verify/operand_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "base/test_sanitized.h"
#include "program/test_cases.h"
#include "program/values/of_setting.h"
#include "program/verify/inferred.h"

namespace molen::program {
namespace {

TEST(OperandRules, SayWhatTheBuilderSays) {
  std::set<std::string> kinds;
  for (const TestCase& c : all_test_cases()) {
    const Program p = build(c.arch, c.setting);
    const Traits traits = inferred_traits(without_setting(p));
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps) {
        const int unit = unit_of_step(p, step);
        kinds.insert(kind_of(step.op));
        EXPECT_EQ(operands_needed(p, traits, step.op, unit), signature(p, step.op, unit).operands)
            << c.name << ": " << print_step(p, step);
      }
  }
  EXPECT_GT(kinds.size(), 60u);
}

// A wrong line of the builder's table makes every op of a kind wrong in the same way, so that no other op shows the
// difference.
TEST(OperandRules, RefuseAMistakeThatEveryOpOfAKindHas) {
  std::set<std::tuple<std::string, Arg>> seen;
  std::size_t tried = 0, turn = 0;
  for (const TestCase& c : all_test_cases()) {
    const Program p = build(c.arch, c.setting);
    std::set<std::tuple<std::string, Arg>> here;
    for (const Body& body : p.bodies)
      for (const Step& step : body.steps)
        for (const Use& use : step.operands)
          if (const std::tuple key{kind_of(step.op), use.arg}; seen.insert(key).second) here.insert(key);
    for (const auto& [kind, arg] : here)
      for (const Access access : kAllAccesses)
        for (const Range range : {Range::kAll, Range::kShard, Range::kOwn}) {
          Program q = p;
          bool changed = false;
          for (Body& body : q.bodies)
            for (Step& step : body.steps) {
              Use* use = kind_of(step.op) == kind && step.find(arg) ? &step.operand(arg) : nullptr;
              // Adding to a gradient and overwriting it can both be right, depending on the op's place in the program.
              const bool either =
                  use && (arg == Arg::kGrad || arg == Arg::kTo) && writes(use->access) && writes(access);
              if (!use || either || (use->access == access && use->range == range)) continue;
              use->access = access, use->range = range;
              changed = true;
            }
          if (!changed || turn++ % kStride != 0) continue;
          ++tried;
          EXPECT_FALSE(verify(pass::costs(without_setting(q))).empty())
              << c.name << ": " << kind << " " << name_of(access) << " " << name_of(arg) << "[" << name_of(range)
              << "]";
        }
  }
  fmt::print("{} operands, {} mistakes, all refused\n", seen.size(), tried);
  EXPECT_GT(tried * kStride, 1000u);
}

}  // namespace
}  // namespace molen::program
