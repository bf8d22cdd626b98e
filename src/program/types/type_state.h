// The type checker keeps a type for each segment of a buffer. A buffer of a unit has a segment for each parameter, the
// step's sums have one for each sum, and any other buffer has one for each piece of its rows, or for each tile of rows
// in the order of experts.
#pragma once

#include <cstdint>
#include <vector>

#include "program/ir/program.h"
#include "program/ir/slots.h"

namespace molen::program {

struct TypeState {
  // kNothing: no op of this step has written the segment. kZero: the segment is cleared, and no term has been added
  // yet. kTyped: the segment has a type.
  enum class Content : std::uint8_t { kNothing, kZero, kTyped };
  Content content = Content::kNothing;
  MeshType type;
  bool operator==(const TypeState&) const = default;
};

class TypeStates {
 public:
  // A state that outlives a step begins with the type in which it is kept.
  explicit TypeStates(const Program& program);

  std::size_t segments(int buffer) const { return segments_[static_cast<std::size_t>(buffer)]; }
  TypeState& at(int buffer, std::int64_t micro_batch, std::size_t segment) {
    return states_[first_[slots_.place(buffer, micro_batch)] + segment];
  }
  void forget_transients();

 private:
  Slots slots_;
  std::vector<std::size_t> segments_;  // by buffer
  std::vector<std::size_t> first_;     // by place
  std::vector<TypeState> states_;
  std::vector<std::pair<std::size_t, std::size_t>> transients_;  // ranges of states_
};

// Returns whether a buffer has a segment for each parameter of its unit.
bool of_parameters(const Buffer& buffer);
// Returns whether a buffer holds directions of an optimizer. Only parameters that the optimizer updates as a whole
// have directions.
bool of_directions(const Buffer& buffer);
// Returns the piece of the rows that an op works on, or -1 for all rows.
std::int64_t piece_of_rows(const Op& op);

}  // namespace molen::program
