// Makes operands of signatures, by their access.
#pragma once

#include <utility>

#include "program/values/signature.h"

namespace molen::program::operand {

inline Operand with(Arg arg, Access access, Operand o) {
  o.arg = arg;
  o.access = access;
  return o;
}
inline Operand reads(Arg arg, Operand o) {
  return with(arg, Access::kRead, std::move(o));
}
inline Operand consumes(Arg arg, Operand o) {
  return with(arg, Access::kConsume, std::move(o));
}
inline Operand writes(Arg arg, Operand o) {
  return with(arg, Access::kWrite, std::move(o));
}
inline Operand updates(Arg arg, Operand o) {
  return with(arg, Access::kUpdate, std::move(o));
}
// Overwrites it, or adds to it, as the step says.
inline Operand adds(Arg arg, Operand o) {
  o.may_add = true;
  return writes(arg, std::move(o));
}
// Makes `after` of `before`, in place.
inline Operand turns(Arg arg, const Operand& before, Operand after) {
  after.before = {before.value, before.layer, before.step};
  return updates(arg, std::move(after));
}

}  // namespace molen::program::operand
