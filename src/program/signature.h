// What each op reads and writes: its operands by argument, as values of the model's computation. The builder makes
// buffers from it, and the verifier follows the values through a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

// `layer`: the layer l whose value it is, or the unit's index where the value is a unit's (value.h: of_unit).
struct Operand {
  Value value{};
  std::int64_t layer = -1;
  Range range = Range::kAll;
  std::int64_t step = 0;  // of a ring, or of a message
  bool host = false;      // what a layer keeps, on the host meanwhile
  // Which piece of its rows an op uses (Setting::tensor_chunks); -1: all.
  std::int64_t chunk = -1;
  // Of a read: the op uses the value up, and its memory may hold anything afterwards.
  bool consumed = false;
  Arg arg{};
  bool operator==(const Operand&) const = default;
};

struct Signature {
  std::vector<Operand> reads, writes;
  const Operand& read(Arg arg) const;  // throws Error where there is none
  const Operand& write(Arg arg) const;
};

// The operands of `op` in a program of this architecture and setting. `unit` is the unit an OptimizerStep, SumSquares
// or collective works on (it follows from the buffer that the step names).
Signature signature(const Program& program, const Op& op, int unit);

// Whether a step may overwrite what it reads as this argument.
bool consumes(const Program& program, const Step& step, Arg read);

// Unit whose parameters a part reads; -1 where it has none.
int unit_of_part(const Program& program, arch::Part part, std::int64_t layer);

// Whether an op on this part runs once for each piece of its rows: the products that tensor ranks exchange rows around.
bool by_chunks(const Setting& setting, arch::Part part);
// Whether an operand that is a piece of a value's rows has a buffer of its own, and is no part of one that holds all.
// So has what tensor ranks have only on the way, sums to be made and rows brought together; but for the table and the
// final norm, which leave and take all rows at once.
bool chunk_apart(const Program& program, const Operand& operand);

// The range of its unit that a buffer with this role holds.
Range extent_of(const Program& program, Value value);

// Of the largest rank.
std::int64_t elements_of(const Program& program, const Operand& operand);
DType dtype_of(const Program& program, Value value);
// Whether the value is a sum in the making that is kept wider than the compute dtype.
bool wide_partial(const Program& program, Value value);
// Whether an op must write a value in the place where it reads another.
bool in_place(const Program& program, const Op& op, const Operand& write, const Operand& read);
Lifetime lifetime_of(const Program& program, Value value);
Place place_of(const Program& program, const Operand& operand);
// The stream that an op runs on.
Stream stream_of(const Program& program, const Op& op);

// The value that a copy of what a layer keeps moves (kKeptForBackward).
Value kept_value(Moves moves);

// Which unit a step's operands belong to, from the first of its buffers that is a unit's; -1 if none is.
int unit_of_step(const Program& program, const Step& step);

}  // namespace molen::program
