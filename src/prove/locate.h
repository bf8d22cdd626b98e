// The first place where a wrong layout departs from one rank: `molen verify` runs one step of both again and compares
// the values of forward and backward in order. In this way it names the cause of a difference and not one of its
// consequences.
#pragma once

#include <string>
#include <vector>

#include "prove/proof.h"

namespace molen::prove {

// Returns, on all ranks, a text such as "mid of layer 1 at sample 3, token 7 (off by 2.1e-01 of its largest value), of
// body first, op %17 (forward out_projection, layer 1, micro-batch 0) on rank 2". Collective over `world`, whose ranks
// run the programs of their stages; `reference` is the program of one rank, which rank 0 runs on `read_reference`,
// whose micro-batches have its size. The values are compared in the order in which one rank computes them. First come
// the input, middle and last output of the layers and their gradients. Without tensor ranks, which would split them,
// the results of the parts within a layer are compared too. Then come the gradients of parameters, the step's sums, and
// the parameters after the update.
std::string locate_difference(const program::Program& reference, const ReadSamples& read_reference,
                              const std::vector<program::Program>& stages, const ReadSamples& read, const Trial& trial,
                              const Bounds& bounds, comm::Communicator& world);

}  // namespace molen::prove
