// What the passes share.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/signature.h"

namespace molen::program::detail {

// The parts of a layer in forward order.
inline constexpr std::array kLayerParts{arch::Part::kNormQkv, arch::Part::kAttention,  arch::Part::kOutProjection,
                                        arch::Part::kNormUp,  arch::Part::kActivation, arch::Part::kDown};

// The buffer that holds `operand`, made if the program has none. Per-layer values are named "qkv.<layer>", or
// "qkv.<suffix>" where layers share a slot.
int ensure_buffer(Program& p, const Operand& operand, const std::string& suffix = "");
Step make_step(Program& p, Op op, int unit, Phase phase, Stream stream, const std::string& suffix = "");
Step compute_step(Program& p, arch::Part part, ComputePass pass, std::int64_t layer, std::int64_t chunk,
                  const std::string& suffix = "");

// A part on one rank; `chunk`: tokens of a chunk of the head, the step of attention in a ring, or the piece of the rows
// (-1: all of it).
arch::PartCost part_cost(const arch::Architecture& local, const Setting& setting, arch::Part part, arch::Pass pass,
                         std::int64_t chunk, bool kv_copied = false);

// The buffer itself, or the copy "NAME/1" and so on beside it, made if the program has none.
int copy_of(Program& p, int buffer, int copy);
// Axes over which updated parameters come together again, in order.
std::vector<Axis> gathered_over(const Setting& setting);
// Backward ops of a body add to gradients, but for the first writers of each where it is the `first` to write them.
void set_accumulate(Program& p, Body& body, bool first);
// Clears what a gradient must not hold before its first writer of a body adds to it or a reduction reads it: of each
// unit that the body writes what no op of the body overwrites.
struct Clearing {
  int but = -1;                // a unit that an earlier body of the micro-batch has cleared
  bool whole = false;          // all of each unit
  const Chunk* all = nullptr;  // the units of its layers too, where the body writes nothing of them
};
void clear_gradients(Program& p, Body& body, const Clearing& clearing = {});
void drop_unused_buffers(Program& p);
// Values of layers live from instance to instance of their micro-batch where a body reads them that has not written
// them, and within an instance where none does.
void find_lifetimes(Program& p);
// Elements between the unit's parameters, which no op but ZeroFill writes.
bool has_padding(const Program& p, const Unit& unit);

}  // namespace molen::program::detail
