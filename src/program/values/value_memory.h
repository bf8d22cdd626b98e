// The memory that a value of the model's computation needs on a rank: size, type, lifetime and place of its buffer.
#pragma once

#include <cstdint>

#include "program/ir/traits.h"
#include "program/values/operands.h"

namespace molen::program {

// Returns whether an operand that is one piece of a value's rows has a buffer of its own instead of a part of a buffer
// of all rows. This is true for values that tensor ranks exchange at once (sums before their reduction, gathered rows),
// except next to the embedding table and the final norm, which handle all rows in one op.
bool piece_apart(const Program& program, const Operand& operand);

// Returns the range of its unit that a buffer with this role holds.
Range extent_of(const Traits& traits, Value value);

// Returns how many elements a buffer of this value has for the first `at` elements of a unit. The result is `at`, less
// for a state that exists for some parameters only, or more for a value with one more number beside each parameter.
std::int64_t elements_before(const Program& program, Value value, const Unit& unit, std::int64_t at);

// Returns the number of elements of an operand on the largest rank.
std::int64_t elements_of(const Program& program, const Traits& traits, const Operand& operand);
DType dtype_of(const Traits& traits, Value value);
// Returns whether the value is a partial sum that is kept in a wider type than the compute type.
bool wide_partial(const Traits& traits, Value value);
Lifetime lifetime_of(const Traits& traits, Value value);
Place place_of(const Traits& traits, const Operand& operand);

}  // namespace molen::program
