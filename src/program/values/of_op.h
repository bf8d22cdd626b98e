// Properties that follow from an op alone: its unit, its stream, and the values that it moves.
#pragma once

#include <cstdint>
#include <string_view>

#include "program/ir/program.h"

namespace molen::program {

// Returns the unit whose parameters a part reads, or -1 when it reads none.
int unit_of_part(const Program& program, arch::Part part, std::int64_t layer);

// Returns whether an op of this part runs once for each piece of its rows: true for the products before and after which
// tensor ranks exchange rows.
bool by_pieces(const Rows& rows, arch::Part part);
// Returns whether an op of this part runs once for each tile of a rank's experts.
bool by_tiles(const Rows& rows, arch::Part part);
// Returns whether tensor ranks share matrices of a unit that the optimizer updates whole (UpdateStage).
bool shares_whole_matrices(const Program& program, int unit);
// Returns the stream that an op runs on.
Stream stream_of(const Offload& offload, const Op& op);

// The two values between which an exchange of expert ranks moves rows: the rows on the rank of their tokens, in the
// order of experts, and the rows on the rank of their experts. The function throws Error for a value that these ranks
// do not exchange.
struct RowsOfExperts {
  Value here{}, there{};
};
RowsOfExperts rows_of_experts(Payload payload);

// Returns the word for an op's portion in texts and messages: "chunk" of the head, "step" of a ring, "expert_tile", or
// "piece" of the rows.
std::string_view portion_word(const Op& op);

// Returns the kept value (kKeptForBackward) that a copy moves.
Value kept_value(Payload payload);

// Returns the unit of a step's operands, from the first of its buffers that belongs to a unit; -1 if none does.
int unit_of_step(const Program& program, const Step& step);

}  // namespace molen::program
