// The proof that layouts compute the same model: the same start, the same samples, some steps, and what differs from
// one rank beside the bound that rounding allows (DESIGN section 3). `molen verify` and the layout tests run it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/program.h"
#include "train/traffic.h"

namespace molen::train {

// Fills the first `count` rows of a micro-batch with the samples from `first` on in the global order, the others with
// ids 0, labels -1 and one document. Returns the number of labels that count. Any thread may call it.
using ReadSamples = std::function<std::int64_t(std::int64_t first, std::int64_t count, const exec::MicroBatch& to)>;

// Samples that count up from a drawn start, modulo the vocabulary; every fifth label of odd samples does not count, and
// every seventh number or so begins a document.
ReadSamples synthetic_samples(const program::Setting& setting, std::int64_t vocabulary);

struct Trial {
  int steps = 10;
  std::uint64_t seed = 5;
  double lr = 3e-3;
  double loss_scale = 1024.0;  // where the program scales its loss
  exec::Options options;
};

struct Outcome {
  std::vector<double> losses, norms;          // per step
  std::map<std::string, at::Tensor> tensors;  // weights, and gradients of the last step as "grad/NAME"; fp64, whole
  std::string hash;                           // of the state (train/checkpointing.h)
  Traffic traffic;                            // of this rank in the last step
};

// Trains on this rank; collective over `world`, and but for the traffic the same on all its ranks when it returns.
// Memory used must equal memory planned, op by op, and calls and bytes, by axis and kind of call, what the program says
// of this rank: throws Error where they do not, and where a step is not finite. Gradients are given without their loss
// scale.
Outcome prove(const program::Program& program, comm::Communicator& world, const ReadSamples& read, const Trial& trial);

// What an outcome takes of the host beside the arena: while a rank makes it, and once it is made.
struct OutcomeBytes {
  Bytes making, made;
};
OutcomeBytes outcome_bytes(const arch::Architecture& arch);

// How far `b` is from `a`. NaN counts as infinite.
struct Difference {
  double loss = 0;        // largest over the steps, over the loss
  double norm = 0;        // of gradient norms, the same
  double parameters = 0;  // largest over the tensors, over the tensor's largest value
  double gradients = 0;
  std::string worst_parameter, worst_gradient;
};
Difference difference(const Outcome& a, const Outcome& b);

struct Bounds {
  double loss, norm, parameters, gradients;
};
// Largest of the differences over its bound; above 1 it is not the same model. What is not finite is above any bound.
double over_bounds(const Difference& difference, const Bounds& bounds);

// fp64: 1e-9 after any number of steps (DESIGN section 3). fp32: one step. A sum of n terms is off by n roundings at
// most and by about sqrt(n), as a rule (Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 2.8);
// of sums that read each other n adds up. Here n is that of the longest chain of the model: forward through all layers
// and the head for the loss, and backward again for gradients, then over the tokens of the batch; and both sides of the
// comparison round. Left out: the few roundings a layer that are no sums, and how much a model amplifies (a softmax of
// large scores): one that is badly scaled may exceed it. Weights are not bounded: AdamW divides by what may be
// rounding. Narrower types, of which no such bound says anything, throw Error.
Bounds bounds_of(const program::Program& program);
// Of narrower types: one step of one rank beside the same in fp64 tells how far rounding leads. Another order of the
// same sums may lead as far elsewhere; four times that.
Bounds bounds_beside(const Outcome& exact, const Outcome& rounded);

// Names what of a failing layout differs first: the gradient of a parameter, in the order of the backward, or else the
// loss or the norm, or else a parameter after the step, and the op of its stage's program that wrote it.
std::string first_difference(const std::vector<program::Program>& stages, const Outcome& reference,
                             const Outcome& outcome, const Bounds& bounds);

}  // namespace molen::train
