// The optimizers, declared: the states that each keeps beside the weights from step to step. Buffers, the memory plan,
// offload, ZeRO's parts and checkpoints follow from the declaration. The kernels are in src/optim, a file for each
// optimizer. Master weights are no state of an optimizer: they follow from the types of weights.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/parameters.h"
#include "base/units.h"
#include "program/ir/arg.h"
#include "program/values/value.h"

namespace molen::program {

// The elements, rows or columns for which a state keeps one number each. The last three choices need
// Optimizer::whole_parameters.
enum class StateOf {
  kAll,      // each element of all parameters
  kRest,     // each element of all but the parameters that the optimizer updates whole
  kVectors,  // each element of parameters with one dimension
  kRows,     // each row of matrices
  kColumns,  // each column of matrices
};

// A state, in fp32, or in fp64 where compute is. The name of its value is that of its buffers, and NAME in the
// checkpoint's "optimizer.NAME/<parameter>".
struct OptimizerState {
  Value value{};
  Arg arg{};  // of the optimizer step
  StateOf of = StateOf::kAll;
  // Whether it has a shape of its own, so that its numbers do not follow the elements of the unit.
  bool has_shape() const { return of != StateOf::kAll && of != StateOf::kRest; }
  // Returns the shape of such a state for a parameter, as in a checkpoint; empty where it has no number for it. A
  // vector has no columns.
  std::vector<std::int64_t> shape(std::int64_t rows, std::int64_t columns) const;
};

// The cost of an update that works on matrices as a whole, for one of rows x columns.
struct MatrixCost {
  Flops flops;
  std::int64_t scratch = 0;  // elements, in the type of the states
};

struct Optimizer {
  std::string_view name;  // `optimizer.kind`, and `kind` of the optimizer step
  std::vector<OptimizerState> states;
  // Set where the update of a layer's matrix needs all of it: ZeRO then deals such matrices to ranks whole, each
  // parameter of its own (q, k, v, ...). Embedding, head, norms and biases are updated element by element.
  MatrixCost (*whole_matrices)(std::int64_t rows, std::int64_t columns) = nullptr;
  // Set where the update of any parameter needs all of it: ZeRO then deals parameters to ranks whole. Where tensor
  // ranks hold parts of them, they gather the gradients, with one number for each parameter beside its part, and each
  // keeps the states of the parameter whole.
  bool whole_parameters = false;
  int gradient_reads = 1;  // how often the update goes over the gradient
  bool has_whole() const { return whole_matrices || whole_parameters; }
  bool updates_whole(const arch::Parameter& parameter) const;
  const OptimizerState* find(Value state) const;  // nullptr if the optimizer keeps no such state
};

const std::vector<Optimizer>& optimizers();
// Throws UsageError, with the nearest name, when there is none of this name.
const Optimizer& optimizer_named(std::string_view name);

}  // namespace molen::program
