// The optimizers, declared: the states that each keeps beside the weights from step to step. Buffers, the memory plan,
// offload, ZeRO's parts and checkpoints follow from the declaration. The kernels are in src/optim, a file for each
// optimizer. Master weights are no state of an optimizer: they follow from the types (Setting::master).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/parameters.h"
#include "base/units.h"
#include "program/ir/arg.h"
#include "program/values/value.h"

namespace molen::program {

// The parameters that a state exists for. kRest: all but the matrices that the optimizer updates whole.
enum class StateOf { kAll, kRest };

// A state with a number for each element of its parameters, in fp32, or in fp64 where compute is. The name of its value
// is that of its buffers, and NAME in the checkpoint's "optimizer.NAME/<parameter>".
struct OptimizerState {
  Value value{};
  Arg arg{};  // of the optimizer step
  StateOf of = StateOf::kAll;
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
  bool updates_whole(const arch::Parameter& parameter) const;
  bool keeps_of_rest(Value state) const;  // whether it is a state that exists for the rest alone
};

const std::vector<Optimizer>& optimizers();
// Throws UsageError, with the nearest name, when there is none of this name.
const Optimizer& optimizer_named(std::string_view name);

}  // namespace molen::program
