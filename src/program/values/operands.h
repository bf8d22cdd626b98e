// The operands of an op, as a rule states them: their arguments, their accesses, and the values of the model's
// computation that the operands hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// `layer`: the layer that the value belongs to, or the index of the unit for a value of a unit (value.h: of_unit).
struct Operand {
  Value value{};
  std::int64_t layer = -1;
  Range range = Range::kAll;
  std::int64_t step = 0;  // the step of a ring, or of a message
  bool host = false;      // the copy of a kept value that is offloaded to the host
  // The piece of the value's rows that an op uses (Rows::pieces), or the tile of rows in the order of experts
  // (Rows::expert_tiles); -1: all rows.
  std::int64_t portion = -1;
  Arg arg{};
  Access access{};
  // Whether a step may add to the operand (kUpdate) although the rule says that it overwrites the operand (kWrite).
  bool may_add = false;
  // The value that is in the buffer before an update, if the update turns it into another value.
  struct Before {
    Value value{};
    std::int64_t layer = -1, step = 0;
    bool operator==(const Before&) const = default;
  };
  std::optional<Before> before = {};
  // The operand in whose buffer this one lies. Without it, an operand has a buffer of its own, unless it is only read.
  std::optional<Arg> within = {};
  // Returns the operand as it is before the op runs: with the value `before`.
  Operand as_found() const;
  bool operator==(const Operand&) const = default;
};

// Returns the operands by access, for messages: "reads x, param; writes y", or "nothing".
std::string text_of(const std::vector<Operand>& operands);
std::string text_of(const std::vector<Use>& operands);

}  // namespace molen::program

// Functions that make an operand with the access that their name says.
namespace molen::program::operand {

inline Operand with(Arg arg, Access access, Operand o) {
  o.arg = arg;
  o.access = access;
  return o;
}
inline Operand reads(Arg arg, Operand o) {
  return with(arg, Access::kRead, o);
}
inline Operand consumes(Arg arg, Operand o) {
  return with(arg, Access::kConsume, o);
}
inline Operand writes(Arg arg, Operand o) {
  return with(arg, Access::kWrite, o);
}
inline Operand updates(Arg arg, Operand o) {
  return with(arg, Access::kUpdate, o);
}
// The op overwrites the operand or adds to it, as the step says.
inline Operand adds(Arg arg, Operand o) {
  o.may_add = true;
  return writes(arg, o);
}
// The op turns `before` into `after` in place.
inline Operand turns(Arg arg, const Operand& before, Operand after) {
  after.before = {before.value, before.layer, before.step};
  return updates(arg, after);
}

}  // namespace molen::program::operand
