// The proof that layouts compute the same model. A layout trains some steps from the same start and on the same samples
// as one rank, and its differences are compared with the bounds that rounding allows. `molen verify` and the layout
// tests run it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "launch/traffic.h"
#include "program/ir/program.h"

namespace molen::prove {

// Fills the first `count` rows of a micro-batch with samples, in global order from sample `first` on; fills the other
// rows with ids 0, labels -1 and one document. Returns the number of labels that count. Any thread may call it.
using ReadSamples = std::function<std::int64_t(std::int64_t first, std::int64_t count, const exec::MicroBatch& to)>;

// Returns samples that count up from a drawn start, modulo the vocabulary. Every fifth label of odd samples does not
// count, and about every seventh number begins a document.
ReadSamples synthetic_samples(const program::Setting& setting, std::int64_t vocabulary);

// Returns the loader of one step: each call fills the executor's next micro-batch. Samples are dealt to the data ranks
// as data::samples_of deals them; a rank that has run out of them gets rows that do not count. `setting` is the setting
// that the program was built for, because a test may have wiped the executor's own copy. It must outlive the loader.
exec::LoadMicroBatch loads_of_step(const exec::Executor& executor, const program::Setting& setting, ReadSamples read,
                                   std::int64_t step);

struct Trial {
  int steps = 10;
  std::uint64_t seed = 5;
  double lr = 3e-3;
  double loss_scale = 1024.0;  // used when the program scales its loss
  exec::Options options;
  std::function<void(const exec::Executor&)> prepare = {};  // called once the parameters have their first values
};

struct Outcome {
  std::vector<double> losses, norms;  // per step
  // losses of the routers, per step; empty when the model has no sparse layers
  std::vector<double> balance, z;
  // share of choices that capacities drop, per step; empty when the model has no capacities
  std::vector<double> dropped;
  std::map<std::string, at::Tensor> tensors;  // weights, and last-step gradients as "grad/NAME"; fp64, whole
  std::string hash;                           // hash of the state (launch/checkpointing.h)
  launch::Traffic traffic;                    // traffic of this rank in the last step
};

// Trains on this rank. Collective over `world`; except for the traffic, the outcome is the same on all its ranks.
// Checks that memory used equals memory planned, op by op, and that calls and bytes, by axis and kind of call, equal
// what the program says for this rank. Throws Error when they do not, or when a step is not finite. Gradients are
// returned without their loss scale.
Outcome prove(const program::Program& program, comm::Communicator& world, const ReadSamples& read, const Trial& trial);

// Host memory that an outcome takes beside the arena: `making` while a rank computes it, and `made` once it is
// complete.
struct OutcomeBytes {
  Bytes making, made;
};
OutcomeBytes outcome_bytes(const arch::Architecture& arch);

// The distance of outcome `b` from outcome `a`. NaN counts as infinite.
struct Difference {
  double loss = 0;        // largest over the steps, relative to the loss; the losses of routers count as well
  double norm = 0;        // the same for gradient norms
  double parameters = 0;  // largest over the tensors, relative to the tensor's largest value
  double gradients = 0;
  std::string worst_parameter, worst_gradient;
};
Difference difference(const Outcome& a, const Outcome& b);

struct Bounds {
  double loss, norm, parameters, gradients;
};
// Returns the largest ratio of a difference to its bound; a ratio above 1 means that it is not the same model. A value
// that is not finite exceeds any bound.
double over_bounds(const Difference& difference, const Bounds& bounds);

// Returns the bounds of a program's differences. In fp64 the bound is 1e-9 after any number of steps. In fp32 it is for
// one step. A sum of n terms is off by n roundings at most and, as a rule, by about sqrt(n) (Higham, Accuracy and
// Stability of Numerical Algorithms, sections 3.1 and 2.8); when one sum reads another, their n add up. Here n belongs
// to the model's longest chain of sums. For the loss, the chain runs forward through all layers and the head. For
// gradients, it continues backward and then over the tokens of the batch. Both sides of the comparison round. The bound
// leaves out the few roundings of a layer that are not sums, and how much a model amplifies them (a softmax of large
// scores): a badly scaled model may exceed it. Weights are not bounded, because AdamW may divide by a value that is
// only rounding. Throws Error for narrower types, which this bound does not cover.
Bounds bounds_of(const program::Program& program);
// Returns the bounds of narrower types. The difference between one step of one rank and the same step in fp64 tells how
// far rounding leads. Another order of the same sums may lead as far in another direction; the bound is four times that
// difference.
Bounds bounds_beside(const Outcome& exact, const Outcome& rounded);

// Names the first difference of a failing layout, and the op of its stage's program that wrote the value. The gradients
// of parameters come first, in the order of the backward; then the loss and the norm; then the parameters after the
// step.
std::string first_difference(const std::vector<program::Program>& stages, const Outcome& reference,
                             const Outcome& outcome, const Bounds& bounds);

}  // namespace molen::prove
