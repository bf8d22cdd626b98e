// The local rules of the parts of a model: the types in which a part finds its operands, and those in which it leaves
// them. Each part's declaration states them (parts/type_rules.h).
#pragma once

#include <optional>
#include <vector>

#include "program/ir/program.h"
#include "program/parts/part.h"

namespace molen::program {

// Returns the rules of a part's activations; parameters, their gradients and the step's sums have rules of their own.
// Throws Error when the part has no rule for the pass. `keys`: the op reads keys of other context ranks.
std::vector<OperandRule> part_rule(const Compute& part, int context_ranks, bool keys);

// Whether a part of a layer reads the parameter and makes its gradient.
bool has_parameter(const Program& program, const Compute& part, const arch::Parameter& parameter);
// Whether this pass of the part makes the parameter's gradient: the halves of a norm's backward share them.
bool makes_gradient(const Compute& part, arch::Role role);

// The type of RoPE's table or of ALiBi's slopes: all ranks hold the same, except that context ranks have different
// positions, and tensor ranks different heads.
MeshType constant_type(const Program& program, Value value);

// The type of a parameter of a unit when all of its layout's gathers are done.
MeshType parameter_type(const Program& program, int unit, const arch::Parameter& parameter);
// The type of its gradient as backwards add to it: what each rank has is a term of a sum over the ranks that hold the
// parameter alike, and complete where the parameter is sharded.
MeshType gradient_type(const Program& program, int unit, const arch::Parameter& parameter);
// The type in which a state of a unit that outlives the step is kept: a parameter's, sharded over the axes over which
// the grid cuts the part of the unit that the buffer holds. Nothing for a value that is no such state.
std::optional<MeshType> kept_type(const Program& program, const Buffer& buffer, const arch::Parameter& parameter);

}  // namespace molen::program
