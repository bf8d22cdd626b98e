// The declarations of the optimizers: the states that each optimizer keeps beside the weights from step to step.
// Buffers, the memory plan, offload, ZeRO's shards and checkpoints follow from the declaration. The kernels are in
// src/optim, with one file for each optimizer. Master weights are not a state of an optimizer: they follow from the
// types of weights.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/parameters.h"
#include "base/units.h"
#include "program/ir/arg.h"
#include "program/values/value.h"

namespace molen::program {

// Names the elements, rows or columns for each of which a state keeps one number. The last three choices need
// Optimizer::whole_parameters.
enum class StateOf {
  kAll,      // each element of all parameters
  kRest,     // each element of all but the parameters that the optimizer updates whole
  kVectors,  // each element of parameters with one dimension
  kRows,     // each row of matrices
  kColumns,  // each column of matrices
};

// A state, in fp32, or in fp64 if compute is fp64. The name of the state's value is also the name of its buffers, and
// NAME in the checkpoint's "optimizer.NAME/<parameter>".
struct OptimizerState {
  Value value{};
  Arg arg{};  // argument of the optimizer step
  StateOf of = StateOf::kAll;
  // Returns whether the state has a shape of its own, so that its numbers do not correspond to the elements of the
  // unit.
  bool has_shape() const { return of != StateOf::kAll && of != StateOf::kRest; }
  // Returns the shape of such a state for a parameter, as in a checkpoint; empty if the state has no number for this
  // parameter. `columns` is 0 for a vector.
  std::vector<std::int64_t> shape(std::int64_t rows, std::int64_t columns) const;
};

// The cost of an update that needs whole matrices, for one matrix of rows x columns.
struct MatrixCost {
  Flops flops;
  std::int64_t scratch = 0;  // elements, in the type of the states
};

struct Optimizer {
  std::string_view name;  // `optimizer.kind`, and `kind` of the optimizer step
  std::vector<OptimizerState> states;
  // Set if the update of a layer's matrix needs the whole matrix. ZeRO then gives each such matrix (q, k, v, ...) to
  // one rank as a whole. Embedding, head, norms and biases are still updated element by element.
  MatrixCost (*whole_matrices)(std::int64_t rows, std::int64_t columns) = nullptr;
  // Set if the update of any parameter needs the whole parameter. ZeRO then gives each parameter to one rank as a
  // whole. If tensor ranks hold parts of a parameter, they gather its gradient, with one more number for each parameter
  // beside its part, and each of them keeps the states of the whole parameter.
  bool whole_parameters = false;
  int gradient_reads = 1;  // how often the update reads the gradient
  bool has_whole() const { return whole_matrices || whole_parameters; }
  bool updates_whole(const arch::Parameter& parameter) const;
  const OptimizerState* find(Value state) const;  // returns nullptr if the optimizer keeps no such state
};

const std::vector<Optimizer>& optimizers();
// Returns the optimizer of this name. Throws UsageError, with the nearest name, when there is none.
const Optimizer& optimizer_named(std::string_view name);

}  // namespace molen::program
