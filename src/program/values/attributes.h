// The attributes that each op has (ir/op.h: Attributes). The builder gives them to ops; the verifier holds ops to those
// of the other ops; the executor reads them where it would otherwise have to know the setting.
#pragma once

#include <optional>
#include <string>

#include "program/ir/traits.h"

namespace molen::program {

// How an op is computed, which its results do not depend on beyond rounding. Each op has its own choice.
struct KernelChoice {
  arch::Kernels kernel = arch::Kernels::kReference;
  int threads = 1;
};

Attributes attributes_of(const Traits& traits, const Op& op, const KernelChoice& choice = {});
// Returns why the kernel of a step cannot compute its part; nothing when it can, or when the step is of no part.
std::optional<std::string> kernel_refused(const Program& program, const Step& step, bool cuda = false);
// Returns why a step of a program with these traits cannot have its attributes; nothing when it can. It may have any
// kernel that can compute its part, on any number of threads; `usual` is what the message names where it has none.
std::optional<std::string> attributes_refused(const Program& program, const Traits& traits, const KernelChoice& usual,
                                              const Step& step);
// "rows=4x512 compute=bf16 kernel=fused threads=2": those that an op has, as in the text form.
std::string text_of(const Attributes& attributes);

}  // namespace molen::program
