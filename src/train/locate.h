// Where a layout that is not the same model first parts from one rank: `molen verify` runs one step of both again and
// follows the values of forward and backward, so that what is named is what went wrong, not what came of it.
#pragma once

#include <string>
#include <vector>

#include "train/proof.h"

namespace molen::train {

// Collective over `world`, whose ranks run the programs of their stages; `reference` is one rank's, run on rank 0 on
// `read_reference` (micro-batches of its size). On all ranks: "mid of layer 1 at sample 3, token 7 (off by 2.1e-01 of
// its largest value), of body first, op %17 (forward out_projection, layer 1, micro-batch 0) on rank 2". Looked at, in
// the order in which one rank makes them: input, middle and last output of the layers and their gradients; without
// tensor ranks, between which they are cut, also what the parts of a layer leave; then gradients of parameters, the
// step's sums, and parameters after the update.
std::string locate_difference(const program::Program& reference, const ReadSamples& read_reference,
                              const std::vector<program::Program>& stages, const ReadSamples& read, const Trial& trial,
                              const Bounds& bounds, comm::Communicator& world);

}  // namespace molen::train
