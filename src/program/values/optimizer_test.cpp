// Tests that the states that a program keeps for an optimizer follow from the optimizer's declaration.
#include "program/values/optimizer.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "program/memory/memory.h"
#include "program/test_edit.h"
#include "program/values/of_setting.h"

namespace molen::program {
namespace {

Program updated_by(std::string_view kind) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 1;
  s.global_batch = 2;
  s.sequence = 16;
  s.optimizer = std::string(kind);
  return build(tiny(), s);
}

std::string refusal_of(const std::string& text) {
  try {
    require_sound(parse(text, "p.txt"), "p.txt");
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Optimizer, BuffersAndOperandsFollowFromTheDeclaration) {
  for (const Optimizer& optimizer : optimizers()) {
    const Program p = updated_by(optimizer.name);
    std::set<Value> wanted, kept;
    for (const OptimizerState& state : optimizer.states) {
      EXPECT_EQ(class_of(state.value), ValueClass::kState);
      EXPECT_EQ(name_of(state.value), name_of(state.arg));
      wanted.insert(state.value);
    }
    Bytes bytes;
    for (const Buffer& buffer : p.buffers)
      if (class_of(buffer.role) == ValueClass::kState) {
        kept.insert(buffer.role);
        bytes += buffer.bytes();
      }
    EXPECT_EQ(kept, wanted) << optimizer.name;
    EXPECT_EQ(summarize(p, plan_memory(p)).optimizer, bytes);
    EXPECT_EQ(refusal_of(print(p)), "accepted") << optimizer.name;
    EXPECT_EQ(parse(print(p), "p.txt"), p);
  }
}

// Returns how many numbers of a unit's state the ranks at these coordinates keep.
std::int64_t kept(const Program& p, const Unit& unit, Value state, int shard, int tensor) {
  mesh::PerAxis at{};
  at[mesh::Axis::kDpShard] = shard;
  at[mesh::Axis::kTp] = tensor;
  const auto [first, last] = unit_range(p.grid, at, unit, extent_of(p, state));
  return elements_before(p, state, unit, last) - elements_before(p, state, unit, first);
}

// Each rank of a ZeRO group has the states of its own parameters. Tensor ranks have the states of whole parameters.
TEST(Optimizer, AdafactorKeepsRowsColumnsAndVectors) {
  for (const int tensor : {1, 2})
    for (const int zero : {0, 1, 3})
      for (const int shards : {1, 3}) {
        Setting s;
        s.mesh[mesh::Axis::kDpShard] = shards;
        s.mesh[mesh::Axis::kTp] = tensor;
        s.zero = zero;
        s.global_batch = shards;
        s.sequence = 16;
        s.optimizer = "adafactor";
        const Program p = build(tiny(), s);
        const std::vector<arch::Parameter> parameters = arch::parameters(p.arch);
        for (const Unit& unit : p.units) {
          std::int64_t rows = 0, columns = 0, vectors = 0;
          for (const UnitEntry& entry : unit.entries) {
            const auto& shape = parameters[static_cast<std::size_t>(entry.parameter)].shape;
            (shape.size() > 1 ? rows : vectors) += shape[0];
            if (shape.size() > 1) columns += shape[1];
          }
          for (const auto& [state, wanted] :
               {std::pair{Value::kRowMoment2, rows}, {Value::kColumnMoment2, columns}, {Value::kMoment2, vectors}}) {
            std::int64_t sum = 0;
            for (int shard = 0; shard < shards; ++shard) sum += kept(p, unit, state, shard, tensor - 1);
            EXPECT_EQ(sum, p.setting.owns_part() ? wanted : shards * wanted) << unit.name << " " << name_of(state);
          }
        }
      }
}

TEST(Optimizer, AdafactorWithTensorRanksStaysOnTheDevice) {
  Setting s;
  s.optimizer = "adafactor";
  s.offload.optimizer = true;
  EXPECT_EQ(optimizer_refused(s), std::nullopt);
  s.mesh[mesh::Axis::kTp] = 2;
  EXPECT_NE(optimizer_refused(s).value_or("").find("parallel.tensor = 1"), std::string::npos);
}

TEST(Optimizer, AnUnknownOneIsRefusedWithTheNearest) {
  Setting s;
  s.optimizer = "adamv";
  EXPECT_THROW(build(tiny(), s), UsageError);
  try {
    optimizer_named("adamv");
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "there is no optimizer 'adamv'; did you mean 'adamw'?");
  }
  const std::string text = print(updated_by("adamw"));
  const std::string op =
      refusal_of(rewrite(text, {"optimizer_step", "param.embed"}, "optimizer_step", "optimizer_step kind=adamv"));
  EXPECT_NE(op.find(": there is no optimizer 'adamv'; did you mean 'adamw'?"), std::string::npos) << op;
  const std::string setting = refusal_of(rewrite(text, {"setting "}, " zero=", " optimizer=adamv zero="));
  EXPECT_NE(setting.find("setting optimizer: there is no optimizer 'adamv'"), std::string::npos) << setting;
}

// A program in which one op follows another rule than the rest would train another model.
TEST(Optimizer, EveryUnitFollowsTheSettingsRule) {
  const std::string text = print(updated_by("lion"));
  const std::string edited = rewrite(text, {"optimizer_step", "param.embed"}, " kind=lion", " kind=adamw");
  const std::string why = refusal_of(edited);
  EXPECT_NE(why, "accepted");
  EXPECT_NE(why.find("optimizer_step"), std::string::npos) << why;
}

}  // namespace
}  // namespace molen::program
