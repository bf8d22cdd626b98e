// The verifier follows the values through a program and refuses a program that would not compute one optimizer step of
// its model. It runs before every training, on programs from any source. Its rules follow from the program alone: from
// ops and their attributes, buffers, the grid of ranks, the stage's chunks and units, and the declarations of parts.
// Another check compares the program with the setting that was asked for (provenance/provenance.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/ir/program.h"
#include "program/memory/memory.h"

namespace molen::program {

struct Finding {
  std::string text;  // "body last, op %12 (backward down, layer 3): reads ... where it needs ..."
};

// Returns at most the first 20 findings of values and then the first 20 of types; none when the program is sound:
//   - every operand exists, has the type and size that its op needs, and holds the value that its op needs: nothing is
//     read before it is written or after its slot was given to another value
//   - each micro-batch contributes once to each gradient, and each contribution is reduced exactly once over the ranks:
//   in
//     each micro-batch if gradients are sharded
//   - each unit is updated exactly once from the reduced, counted gradient, and gathered once over each axis over which
//     its updated parameters are cut
//   - ops that touch one buffer on two streams are ordered by `after`; `after` points backwards only
//   - the types of operands over the mesh fit each op, and are those that the program states (types/check.h)
//   - FLOPs, scratch and bytes are those of the op (values/costs.h); planned memory fits `device_memory`
std::vector<Finding> verify(const Program& program, std::optional<Bytes> device_memory = std::nullopt);

// Checks the programs of all stages of a pipeline together; `verify` must have accepted each of them. The messages and
// collectives between stages must match in value, micro-batch, bytes and order if each op waits for its partner. Takes
// O(ops) time.
std::vector<Finding> verify_world(const std::vector<Program>& stages);

}  // namespace molen::program
