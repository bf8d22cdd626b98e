// Tests that the declarations of parts agree with each other, with the list of parameters, and with the models' lists
// of parts.
#include "program/parts/part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "program/build/recompute.h"
#include "program/values/of_setting.h"

namespace molen::program {
namespace {

using arch::Part;

bool has_rule(const std::vector<OperandRule>& rules, Arg arg) {
  return std::any_of(rules.begin(), rules.end(), [&](const OperandRule& r) { return r.arg == arg; });
}

bool of_activations(const PartOperand& o) {
  return o.arg != Arg::kParam && o.arg != Arg::kGrad && o.arg != Arg::kScalars &&
         class_of(o.value) != ValueClass::kConstant;
}

std::set<Arg> args_of(const std::vector<PartOperand>& operands) {
  std::set<Arg> args;
  for (const PartOperand& o : operands) args.insert(o.arg);
  return args;
}

TEST(Parts, EachOperandHasATypeRule) {
  for (const Part part : arch::kAllParts) {
    const PartDeclaration& d = declaration_of(part);
    SCOPED_TRACE(arch::name_of(part));
    const auto rules = [&](Pass pass) {
      if (d.context_types) return d.context_types(Compute{part, pass, 0, -1}, 1, false);
      return is_backward(pass) ? d.backward_types : d.forward_types;
    };
    for (const Pass pass : arch::kAllPasses) {
      if (is_backward(pass) && !d.has_backward()) continue;
      if (pass == Pass::kBackwardWeights && !d.halves) continue;
      for (const PartOperand& o : operands_declared(d, pass)) {
        if (!of_activations(o)) continue;
        EXPECT_TRUE(has_rule(rules(pass), o.arg)) << name_of(pass) << " " << name_of(o.arg);
      }
    }
  }
}

TEST(Parts, APassHasNoArgumentTwice) {
  for (const Part part : arch::kAllParts) {
    const PartDeclaration& d = declaration_of(part);
    for (const auto* operands : {&d.forward, &d.backward, &d.input, &d.weights}) {
      std::set<std::pair<Arg, When>> seen;
      for (const PartOperand& o : *operands)
        EXPECT_TRUE(seen.emplace(o.arg, o.when).second) << arch::name_of(part) << " " << name_of(o.arg);
    }
  }
}

// Each half of a backward may lack operands of the other half; together the halves have all operands of the whole.
TEST(Parts, HalvesHaveTheOperandsOfTheWhole) {
  for (const Part part : arch::kAllParts) {
    const PartDeclaration& d = declaration_of(part);
    SCOPED_TRACE(arch::name_of(part));
    EXPECT_EQ(d.halves, !d.input.empty());
    EXPECT_EQ(d.halves, !d.weights.empty());
    if (!d.halves) continue;
    std::set<Arg> both = args_of(d.input), whole = args_of(d.backward);
    both.merge(args_of(d.weights));
    EXPECT_EQ(both, whole);
    EXPECT_TRUE(args_of(d.input).count(Arg::kDX));
    EXPECT_FALSE(args_of(d.weights).count(Arg::kDX));
    EXPECT_TRUE(args_of(d.weights).count(Arg::kGrad));
  }
}

// Goes through the lists of a model's parts in forward order, and expects that every value is made before it is read.
void expect_forward_reads_what_is_made(const arch::Architecture& a) {
  for (const bool shared : {false, true}) {
    std::set<std::pair<Value, std::int64_t>> made{
        {Value::kIds, -1}, {Value::kLabels, -1}, {Value::kScalars, -1}, {Value::kRope, -1}, {Value::kSlopes, -1}};
    Program p;
    p.arch = a;
    const auto run = [&](arch::Parts parts, std::int64_t layer) {
      for (const Part part : parts) {
        const Compute c{part, Pass::kForward, layer, 0};
        for (const PartOperand& o : declaration_of(part).forward) {
          if (of_unit(o.value) || !holds(p, o.when)) continue;
          const std::int64_t of = layer_of(p, c, o);
          const Value read = o.value == Value::kHeadSumsAll ? Value::kHeadSums : o.turned.value_or(o.value);
          if (reads(o.access)) {
            EXPECT_TRUE(made.count({read, of}))
                << arch::name_of(part) << " of layer " << layer << " reads " << name_of(read);
          }
          if (writes(o.access)) made.emplace(o.value, of);
        }
      }
    };
    run(arch::parts_before(a), -1);
    for (std::int64_t l = 0; l < a.layers; ++l) run(arch::parts_of_layer(a, l), l);
    run(arch::parts_after(a), -1);
    run(arch::parts_of_head(a, shared), -1);
    EXPECT_TRUE(made.count({Value::kResidual, a.layers}));
    EXPECT_TRUE(made.count({Value::kLosses, -1}));
  }
}

TEST(Parts, ReadWhatEarlierPartsLeft) {
  for (const char* name : {"llama-tiny", "gpt2", "poro-34b", "qwen3-0.6b", "mixtral-8x7b", "olmoe-1b-7b"})
    expect_forward_reads_what_is_made(arch::preset(name));
  arch::Architecture mixed = arch::preset("mixtral-8x7b");
  mixed.experts->dense_layers = 2;
  expect_forward_reads_what_is_made(mixed);
  mixed.experts->shared = 2;
  expect_forward_reads_what_is_made(mixed);
  arch::Architecture normed = arch::preset("gpt2");
  normed.qk_norm = arch::QkNorm::kAll;
  expect_forward_reads_what_is_made(normed);
}

TEST(Parts, EachParameterIsReadByOnePart) {
  for (const char* name : {"llama-tiny", "gpt2", "olmo-7b", "poro-34b", "qwen3-0.6b", "mixtral-8x7b", "olmoe-1b-7b"}) {
    arch::Architecture a = arch::preset(name);
    if (name == std::string_view("olmoe-1b-7b"))
      a.experts->shared = 2, a.experts->dense_layers = 1, a.experts->bias_rate = 0.001;
    for (const arch::Parameter& parameter : arch::parameters(a)) {
      int readers = 0;
      const std::vector<Part> all = arch::parts_in_order(a);
      const arch::Parts parts = parameter.layer < 0 ? arch::Parts(all) : arch::parts_of_layer(a, parameter.layer);
      for (const Part part : parts) {
        const PartDeclaration& d = declaration_of(part);
        if (!d.reads_role(parameter.role, a.tied)) continue;
        ++readers;
        EXPECT_TRUE(d.has_parameters(a)) << name << " " << parameter.name;
        EXPECT_EQ(d.in_layer(), parameter.layer >= 0) << name << " " << parameter.name;
      }
      const bool both = a.tied && parameter.role == arch::Role::kEmbedding;
      EXPECT_EQ(readers, both ? 2 : 1) << name << " " << parameter.name;
    }
  }
}

TEST(Parts, AreComputedAgainUnlessTheyLeaveTheNextLayersInput) {
  std::string again;
  for (const Part part : arch::kAllParts)
    if (declaration_of(part).computed_again()) again += std::string(arch::name_of(part)) + " ";
  EXPECT_EQ(again,
            "norm_qkv qk_norm attention out_projection norm_up activation shared_up shared_act dispatch expert_up "
            "expert_activation ");
}

// RoPE rotates q|k|v in place, so it runs again when the part before it runs again: norm_qkv, or the norms of queries
// and keys.
TEST(Parts, ValuesHaveTheirMakers) {
  const auto makers = [](const char* preset) {
    Program p;
    p.arch = arch::preset(preset);
    return Makers(p, 0);
  };
  const Makers rope = makers("llama-tiny"), learned = makers("gpt2"), normed = makers("qwen3-0.6b");
  const auto expect = [](const std::optional<Maker>& maker, Part part, Part chosen) {
    ASSERT_TRUE(maker);
    EXPECT_EQ(maker->part, part);
    EXPECT_EQ(maker->chosen, chosen);
  };
  expect(rope.of(Value::kProjected), Part::kNormQkv, Part::kNormQkv);
  expect(rope.of(Value::kQkv), Part::kRotate, Part::kNormQkv);
  expect(learned.of(Value::kQkv), Part::kNormQkv, Part::kNormQkv);
  expect(normed.of(Value::kProjected), Part::kNormQkv, Part::kNormQkv);
  expect(normed.of(Value::kNormedQkv), Part::kQkNorm, Part::kQkNorm);
  expect(normed.of(Value::kQkv), Part::kRotate, Part::kQkNorm);
  EXPECT_FALSE(rope.of(Value::kNormedQkv));
  EXPECT_FALSE(learned.of(Value::kProjected));
  expect(rope.of(Value::kStats2), Part::kNormUp, Part::kNormUp);
  expect(rope.of(Value::kMidRows), Part::kOutProjection, Part::kOutProjection);
  for (const Value kept : {Value::kResidual, Value::kResidualSum, Value::kNormed, Value::kDQkv})
    EXPECT_FALSE(rope.of(kept)) << name_of(kept);
}

TEST(Parts, PassesThatAPartLacksAreErrors) {
  EXPECT_THROW(operands_declared(declaration_of(Part::kHeadLogits), Pass::kBackward), Error);
  EXPECT_THROW(operands_declared(declaration_of(Part::kActivation), Pass::kBackwardWeights), Error);
  EXPECT_THROW(exchanged(Value::kUp), Error);
  EXPECT_THROW(exchanged(Payload::kHead), Error);
}

}  // namespace
}  // namespace molen::program
