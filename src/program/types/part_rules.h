// The local rules of the parts of a model: the types that a part requires of its inputs, and the types of its outputs.
// Each part's declaration states them (parts/type_rules.h).
#pragma once

#include <optional>
#include <vector>

#include "program/ir/program.h"
#include "program/parts/part.h"

namespace molen::program {

// Returns the rules of a part's activations. Parameters, their gradients and the step's sums have rules of their own.
// Throws Error when the part has no rule for the pass. `keys` says whether the op reads keys of other context ranks.
std::vector<OperandRule> part_rule(const Compute& part, int context_ranks, bool keys);

// Returns whether a part of a layer reads the parameter and makes its gradient.
bool has_parameter(const Program& program, const Compute& part, const arch::Parameter& parameter);
// Returns whether the parameter belongs to the experts that an op of a part computes: those of its tile, if the experts
// of a rank are cut into tiles.
bool in_tile(const Program& program, const Rows& rows, const Compute& part, const arch::Parameter& parameter);
// Returns whether this pass of the part makes the parameter's gradient. The halves of a norm's backward divide the
// gradients of the part between them.
bool makes_gradient(const Compute& part, arch::Role role);

// Returns the type of RoPE's table or of ALiBi's slopes. All ranks hold the same values, except that context ranks have
// different positions and tensor ranks different heads.
MeshType constant_type(const Program& program, Value value);

// Returns the type of a parameter of a unit after all gathers of its layout.
MeshType parameter_type(const Program& program, int unit, const arch::Parameter& parameter);
// Returns the type of the parameter's gradient while backwards add to it. Over ranks that hold the parameter alike,
// each rank has a term of a sum. Over ranks that shard the parameter, the gradient is complete.
MeshType gradient_type(const Program& program, int unit, const arch::Parameter& parameter);
// Returns the type in which a state of a unit is kept from step to step, or nothing for a value that is no such state.
// It is the type of the parameter, sharded over the axes over which the grid cuts the part of the unit that the buffer
// holds.
std::optional<MeshType> kept_type(const Program& program, const Buffer& buffer, const arch::Parameter& parameter);

}  // namespace molen::program
