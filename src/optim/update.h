// The common form of the optimizers' kernels: an update is a function on consecutive elements of a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "math/scratch.h"

namespace molen::optim {

// The numbers of [optimizer] in a configuration. Each optimizer reads those that its rule uses.
struct Options {
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double momentum = 0.95;   // Muon: momentum of the matrices of layers
  bool match_adamw = true;  // Muon: updates of a matrix are scaled to the size of AdamW's
  double rest_lr = 1.0;     // Muon: learning rate of all other parameters, divided by lr
  // For Adafactor, with the meaning of torch.optim.Adafactor:
  double beta2_decay = -0.8;   // exponent of the step: beta2 = 1 - t^beta2_decay
  std::optional<double> eps1;  // smallest root of the second moment; the epsilon of the states' type where not set
  double eps2 = 1e-3;          // lower bound on the size of a parameter, to which its update is proportional
  double update_clip = 1.0;    // largest root mean square of an update over its step size
};

// One step, on all parameters.
struct Update {
  const Options& options;  // lr of this step
  std::int64_t step = 1;   // counts from 1
  // Factor of the gradient (clipping and averaging), fp64 with one element; on the device of the gradients.
  at::Tensor grad_scale;
  int threads = 1;
  math::Scratch* scratch = nullptr;  // of the size that the optimizer's declaration says; unused on a device
};

// A part of a parameter's direction, which begins at (row, column); a vector is a column. `own`: whether it is the part
// that this rank holds. `beside`: the number that the rank of this part sent with it, if any (Piece::beside).
struct Block {
  std::int64_t row = 0, column = 0;
  at::Tensor values;
  bool own = false;
  at::Tensor beside{};
};

// Consecutive elements of one parameter, as flat tensors. They are all elements if the optimizer updates the parameter
// as a whole. All tensors are fp32, or all are fp64.
struct Piece {
  bool decay = false;  // weight decay applies
  at::Tensor grad, param;
  // The states, in the order of the optimizer's declaration (program/values/optimizer.h). A state that it does not keep
  // for this parameter is undefined.
  std::vector<at::Tensor> states;
  // The sizes, over all tensor ranks, of a parameter that the optimizer updates as a whole; 0 for other parameters. A
  // vector has 0 columns.
  std::int64_t rows = 0, columns = 0;
  // Used when tensor ranks hold parts of the parameter; `grad`, `param` and states with a value per element are then
  // this rank's part. The update has two stages. The first fills `direction` from gradient and momentum; the second
  // applies `blocks`, the directions of all parts. An optimizer that updates all parameters as a whole also sends a
  // number, `beside`, and each rank keeps the whole of its other states.
  at::Tensor direction, beside;
  std::vector<Block> blocks;
};

// Updates `param` and the states in place; leaves `grad`.
using Rule = void (*)(const Update&, const Piece&);

// Returns the kernel of this name. Throws Error when there is none.
Rule rule_named(std::string_view kind);

}  // namespace molen::optim
