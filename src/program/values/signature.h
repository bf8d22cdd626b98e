// The operands that each op has: their arguments, their accesses, and the values of the model's computation that they
// hold. The builder makes buffers from it, and the verifier follows the values through a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/ir/traits.h"

namespace molen::program {

// `layer`: the layer that the value belongs to, or the index of the unit for a value of a unit (value.h: of_unit).
struct Operand {
  Value value{};
  std::int64_t layer = -1;
  Range range = Range::kAll;
  std::int64_t step = 0;  // in a ring, or of a message
  bool host = false;      // the copy of a kept value that is offloaded to the host
  // The piece of its rows that an op uses (Rows::pieces); -1: all rows.
  std::int64_t chunk = -1;
  Arg arg{};
  Access access{};
  // Whether a step may add to the operand (kUpdate) instead of overwriting it, which is its access here (kWrite).
  bool may_add = false;
  // The value that an update finds, when it leaves another one in the buffer.
  struct Before {
    Value value{};
    std::int64_t layer = -1, step = 0;
    bool operator==(const Before&) const = default;
  };
  std::optional<Before> before = {};
  // The operand in whose buffer this one lies. Operands that do not say so have buffers of their own, except for those
  // that are only read.
  std::optional<Arg> within = {};
  // The operand as the op finds it: with the value before.
  Operand as_found() const;
  bool operator==(const Operand&) const = default;
};

struct Signature {
  std::vector<Operand> operands;
  const Operand& operand(Arg arg) const;  // throws Error when there is none
};

// Returns the operands of `op` in a program of this architecture and these traits. `unit` is the unit that an
// OptimizerStep, SumSquares or collective works on (it follows from the buffer that the step names).
Signature signature(const Program& program, const Traits& traits, const Op& op, int unit);

// Operands by access, for messages: "reads x, param; writes y", or "nothing".
std::string text_of(const std::vector<Operand>& operands);
std::string text_of(const std::vector<Use>& operands);

// Returns the unit whose parameters a part reads, or -1 when it reads none.
int unit_of_part(const Program& program, arch::Part part, std::int64_t layer);

// Whether an op of this part runs once for each piece of its rows: true for the products around which tensor ranks
// exchange rows.
bool by_chunks(const Rows& rows, arch::Part part);
// Whether tensor ranks share matrices of a unit that the optimizer updates whole (UpdateStage).
bool shares_whole_matrices(const Program& program, int unit);
// The stream that an op runs on.
Stream stream_of(const Offload& offload, const Op& op);

// The values between which an exchange of expert ranks moves rows: in the order of experts on the rank of their tokens,
// and on the rank of their experts. Throws Error for what these ranks do not send each other.
struct RowsOfExperts {
  Value here{}, there{};
};
RowsOfExperts rows_of_experts(Moves moves);

// Returns the kept value (kKeptForBackward) that a copy moves.
Value kept_value(Moves moves);

// Returns the unit of a step's operands, from the first of its buffers that belongs to a unit; -1 if none does.
int unit_of_step(const Program& program, const Step& step);

}  // namespace molen::program
