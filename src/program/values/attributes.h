// The attributes that each op has (ir/op.h: Attributes). The builder gives them to ops; the verifier holds a program to
// them; the executor reads them where it would otherwise have to know the setting.
#pragma once

#include <optional>
#include <string>

#include "program/ir/program.h"

namespace molen::program {

Attributes attributes_of(const Setting& setting, const Op& op);
// Returns why a step cannot have its attributes; nothing when it can. They must be those that the setting asks for, but
// the kernel may be any that can compute the part.
std::optional<std::string> attributes_refused(const Program& program, const Step& step);
// "rows=4x512 compute=bf16 kernel=fused threads=2": those that an op has, as in the text form.
std::string text_of(const Attributes& attributes);

}  // namespace molen::program
