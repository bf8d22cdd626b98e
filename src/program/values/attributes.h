// The attributes that each op has (ir/op.h: Attributes). The builder sets the attributes of each op; the verifier
// compares them with the attributes of the program's other ops; the executor reads them and so does not depend on the
// setting.
#pragma once

#include <optional>
#include <string>

#include "program/ir/traits.h"

namespace molen::program {

// How an op is computed. The choice changes the op's results only by rounding. Each op has its own choice.
struct KernelChoice {
  arch::Kernels kernel = arch::Kernels::kReference;
  int threads = 1;
};

Attributes attributes_of(const Traits& traits, const Op& op, const KernelChoice& choice = {});
// Returns why the kernel of a step cannot compute its part; nothing when it can, or when the step runs no part.
std::optional<std::string> kernel_refused(const Program& program, const Step& step, bool cuda = false);
// Returns why a step of a program with these traits cannot have its attributes; nothing when it can. The step may have
// any kernel that can compute its part, on any number of threads. If the step has no kernel, the message names `usual`.
std::optional<std::string> attributes_refused(const Program& program, const Traits& traits, const KernelChoice& usual,
                                              const Step& step);
// Returns the attributes that an op has, as in the text form: "rows=4x512 compute=bf16 kernel=fused threads=2".
std::string text_of(const Attributes& attributes);

}  // namespace molen::program
