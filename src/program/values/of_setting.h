// Operands, sizes and attributes in a program that is made for a setting. These are the functions of signature.h,
// value_memory.h, attributes.h and the others, called with the traits that the program's setting asks for. The builder
// uses them. The verifier does not: it infers the traits from the program (verify/inferred.h).
#pragma once

#include <cstdint>
#include <vector>

#include "program/ir/traits.h"
#include "program/parts/operands.h"
#include "program/values/attributes.h"
#include "program/values/signature.h"
#include "program/values/value_memory.h"

namespace molen::program {

// Returns the traits of a program that does all that the setting says.
Traits traits_of(const Setting& setting);

inline Signature signature(const Program& program, const Op& op, int unit) {
  return signature(program, traits_of(program.setting), op, unit);
}
inline bool holds(const Program& program, When when) {
  return holds(program, traits_of(program.setting), when);
}
inline Stream stream_of(const Program& program, const Op& op) {
  return stream_of(program.setting.offload, op);
}
inline Attributes attributes_of(const Setting& setting, const Op& op) {
  const auto* part = std::get_if<Compute>(&op);
  return attributes_of(traits_of(setting), op,
                       {part ? setting.kernels_of(part->part) : setting.kernels, setting.threads});
}
inline std::int64_t elements_of(const Program& program, const Operand& operand) {
  return elements_of(program, traits_of(program.setting), operand);
}
inline bool wide_partial(const Program& program, Value value) {
  return wide_partial(traits_of(program.setting), value);
}
inline Range extent_of(const Program& program, Value value) {
  return extent_of(traits_of(program.setting), value);
}
inline DType dtype_of(const Program& program, Value value) {
  return dtype_of(traits_of(program.setting), value);
}
inline Lifetime lifetime_of(const Program& program, Value value) {
  return lifetime_of(traits_of(program.setting), value);
}
inline Place place_of(const Program& program, const Operand& operand) {
  return place_of(traits_of(program.setting), operand);
}
// Returns how the attributes of a step differ from those that the setting asks for; nothing when they do not. The
// kernel may be any that can compute the part.
std::optional<std::string> attributes_not_asked_for(const Program& program, const Step& step);

}  // namespace molen::program
