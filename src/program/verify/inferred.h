// The traits of a program as its ops, buffers and grid show them. The verifier's rules follow from them, and so do not
// depend on what the program was asked to be.
#pragma once

#include "program/values/attributes.h"

namespace molen::program {

// Where ops or buffers disagree on a trait, it is what most of them say, so that a rule then names those that differ.
Traits inferred_traits(const Program& program);

// The kernel and the number of threads that most ops have.
KernelChoice usual_choice(const Program& program);

// Returns the pipeline stage that the chunks are of.
int stage_shown(const Program& program);

}  // namespace molen::program
