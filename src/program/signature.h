// Signatures: the operands of each op, by argument, as values of the model's computation. The builder makes buffers
// from signatures, and the verifier follows the values through a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

// `layer`: the layer that the value belongs to, or the index of the unit for a value of a unit (value.h: of_unit).
struct Operand {
  Value value{};
  std::int64_t layer = -1;
  Range range = Range::kAll;
  std::int64_t step = 0;  // in a ring, or of a message
  bool host = false;      // the copy of a kept value that is offloaded to the host
  // The piece of its rows that an op uses (Setting::tensor_chunks); -1: all rows.
  std::int64_t chunk = -1;
  // Only for reads: the op uses the value up, and its memory may hold anything afterwards.
  bool consumed = false;
  Arg arg{};
  bool operator==(const Operand&) const = default;
};

struct Signature {
  std::vector<Operand> reads, writes;
  const Operand& read(Arg arg) const;  // throws Error when there is none
  const Operand& write(Arg arg) const;
};

// Returns the operands of `op` in a program of this architecture and setting. `unit` is the unit that an OptimizerStep,
// SumSquares or collective works on (it follows from the buffer that the step names).
Signature signature(const Program& program, const Op& op, int unit);

// Whether a step may overwrite the operand that it reads as this argument.
bool consumes(const Program& program, const Step& step, Arg read);

// Returns the unit whose parameters a part reads, or -1 when it reads none.
int unit_of_part(const Program& program, arch::Part part, std::int64_t layer);

// Whether an op of this part runs once for each piece of its rows: true for the products around which tensor ranks
// exchange rows.
bool by_chunks(const Setting& setting, arch::Part part);
// Whether an operand that is one piece of a value's rows has a buffer of its own instead of a part of a buffer of all
// rows. True for values that tensor ranks have only in transit (sums before reduction, gathered rows), except next to
// the embedding table and the final norm, which handle all rows at once.
bool chunk_apart(const Program& program, const Operand& operand);

// The range of its unit that a buffer with this role holds.
Range extent_of(const Program& program, Value value);

// Sizes of the largest rank.
std::int64_t elements_of(const Program& program, const Operand& operand);
DType dtype_of(const Program& program, Value value);
// Whether the value is a partial sum that is kept in a wider type than the compute type.
bool wide_partial(const Program& program, Value value);
// Whether an op must write a value to the buffer from which it reads another.
bool in_place(const Program& program, const Op& op, const Operand& write, const Operand& read);
Lifetime lifetime_of(const Program& program, Value value);
Place place_of(const Program& program, const Operand& operand);
// The stream that an op runs on.
Stream stream_of(const Program& program, const Op& op);

// Returns the kept value (kKeptForBackward) that a copy moves.
Value kept_value(Moves moves);

// Returns the unit of a step's operands, from the first of its buffers that belongs to a unit; -1 if none does.
int unit_of_step(const Program& program, const Step& step);

}  // namespace molen::program
