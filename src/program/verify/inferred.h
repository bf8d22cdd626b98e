// The traits of a program as its ops, buffers and grid show them. The verifier's rules follow from these traits, and so
// do not depend on the setting for which the program was built.
#pragma once

#include "program/values/attributes.h"

namespace molen::program {

// Returns the traits of a program. If ops or buffers disagree on a trait, the majority decides, so that the rules then
// report the minority.
Traits inferred_traits(const Program& program);

// Returns the kernel and the number of threads that most ops have.
KernelChoice usual_choice(const Program& program);

}  // namespace molen::program
