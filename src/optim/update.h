// The common form of the optimizers' kernels: an update is a function on consecutive elements of a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "math/scratch.h"

namespace molen::optim {

// The numbers of [optimizer] in a configuration. Each optimizer reads those that its rule has.
struct Options {
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double momentum = 0.95;   // Muon: of a layer's matrices
  bool match_adamw = true;  // Muon: updates of a matrix are scaled to the size of AdamW's
  double rest_lr = 1.0;     // Muon: learning rate of all but these matrices, over lr
  // Adafactor, as torch.optim.Adafactor has them.
  double beta2_decay = -0.8;   // exponent of the step: beta2 = 1 - t^beta2_decay
  std::optional<double> eps1;  // smallest root of the second moment; the epsilon of the states' type where not set
  double eps2 = 1e-3;          // smallest size of a parameter that its update is relative to
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

// A part of a parameter's direction, beginning at (row, column); a vector is a column. `own`: the part that this rank
// holds. `beside`: the number that its rank has sent with it, if any (Piece::beside).
struct Block {
  std::int64_t row = 0, column = 0;
  at::Tensor values;
  bool own = false;
  at::Tensor beside{};
};

// Consecutive elements of one parameter, flat; all of one that the optimizer updates whole. All tensors are fp32, or
// all fp64.
struct Piece {
  bool decay = false;  // weight decay applies
  at::Tensor grad, param;
  // In the order of the optimizer's declaration (program/values/optimizer.h); undefined where it keeps none of this
  // parameter.
  std::vector<at::Tensor> states;
  // The sizes, over all tensor ranks, of a parameter that the optimizer updates whole; 0 for other parameters. A
  // vector has no columns.
  std::int64_t rows = 0, columns = 0;
  // Where tensor ranks hold parts of the parameter, `grad`, `param` and states of elements are this rank's part. The
  // update then has two stages: one fills `direction` from gradient and momentum, the other applies `blocks`, all
  // parts' directions. An optimizer that updates all parameters whole sends a number `beside`, and keeps its states
  // whole.
  at::Tensor direction, beside;
  std::vector<Block> blocks;
};

// Updates `param` and the states in place; leaves `grad`.
using Rule = void (*)(const Update&, const Piece&);

// Throws Error when no kernel has this name.
Rule rule_named(std::string_view kind);

}  // namespace molen::optim
