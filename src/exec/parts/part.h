// The binding of parts: the operands of a step become tensors, which are passed to functions of model/parts.h. Each
// family of parts has its own file in this folder with all forms of its parts: whole and in halves, alone and on ranks
// that share them.
#pragma once

#include <vector>

#include "exec/operands.h"

namespace molen::exec {

// A step of a part, with everything that its binding reads.
struct PartCall {
  const BindContext& context;
  const program::Step& step;
  const program::Compute& op;
  const Operands& operands;
  const PartContext& common;
  bool backward() const { return arch::is_backward(op.pass); }
  int ranks(mesh::Axis axis) const { return context.program.grid.sizes[axis]; }
};

struct PartBinding {
  arch::Part part{};
  Kernel (*bind)(const PartCall&) = nullptr;
};

Kernel bind_part(const PartCall& call);

// The bindings of each family.
std::vector<PartBinding> embedding_bindings();
std::vector<PartBinding> norm_product_bindings();
std::vector<PartBinding> qk_norm_bindings();
std::vector<PartBinding> rotate_bindings();
std::vector<PartBinding> attention_bindings();
std::vector<PartBinding> projection_bindings();
std::vector<PartBinding> activation_bindings();
std::vector<PartBinding> routing_bindings();
std::vector<PartBinding> expert_bindings();
std::vector<PartBinding> norm_bindings();
std::vector<PartBinding> head_bindings();

}  // namespace molen::exec
