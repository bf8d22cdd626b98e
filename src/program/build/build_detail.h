// Helpers that the passes share.
#pragma once

#include <string>
#include <vector>

#include "program/ir/program.h"
#include "program/values/signature.h"

namespace molen::program::detail {

// Returns the buffer that holds `operand`, and makes it if the program has none. A value of a layer is named
// "qkv.<layer>", or "qkv.<suffix>" when layers share a slot.
int ensure_buffer(Program& p, const Operand& operand, const std::string& suffix = "");
Step make_step(Program& p, Op op, int unit, Phase phase, Stream stream, const std::string& suffix = "");
Step compute_step(Program& p, arch::Part part, Pass pass, std::int64_t layer, std::int64_t chunk,
                  const std::string& suffix = "");

// Returns the buffer itself for copy 0. For other copies, returns the buffer "NAME/1", "NAME/2" ..., and makes it if
// the program has none.
int copy_of(Program& p, int buffer, int copy);
// Returns the axes over which updated parameters of a unit are gathered, in the order of the gathers.
std::vector<Axis> gathered_over(const Program& program, int unit);
// Makes the backward ops of a body add to gradients. With `first`, the first writer of each gradient overwrites it.
void set_gradient_access(Program& p, Body& body, bool first);
// The options of clear_gradients. That function clears, at the start of a body, the elements of a gradient that its
// first writer would add to or that a reduction would read. They are the elements of the units the body writes that no
// op of the body overwrites.
struct Clearing {
  int but = -1;                // a unit that an earlier body of the micro-batch has already cleared
  bool whole = false;          // clears all elements of each unit
  const Chunk* all = nullptr;  // clears the units of this chunk's layers too, even those that the body does not write
};
void clear_gradients(Program& p, Body& body, const Clearing& clearing = {});
void drop_unused_buffers(Program& p);
// Sets the lifetimes of the values of a layer. A value that some body reads before writing it has the lifetime of its
// micro-batch, and any other value has the lifetime of one instance.
void find_lifetimes(Program& p);
// Whether the unit has elements between its parameters, which only ZeroFill writes.
bool has_padding(const Program& p, const Unit& unit);

}  // namespace molen::program::detail
