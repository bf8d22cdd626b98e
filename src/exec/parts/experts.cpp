// The experts of a sparse layer, on rows in expert order.
#include "model/experts.h"
#include "exec/parts/part.h"

namespace molen::exec {
namespace {

// Returns the largest number of rows that the experts of this rank may have.
std::int64_t rows_of(const PartCall& call) {
  const arch::PartShape& shape = call.common.shape;
  return arch::most_rows_of_experts(call.common.arch.sparse_experts(), shape.batch, shape.sequence,
                                    call.ranks(mesh::Axis::kEp));
}

// Returns the number of rows that the experts have. With several expert ranks or a capacity, the routers decide it.
std::int64_t present(const at::Tensor& offsets, std::int64_t all) {
  return offsets.defined() ? offsets.data_ptr<std::int32_t>()[offsets.numel() - 1] : all;
}

Kernel bind_products(const PartCall& call, at::Tensor (UnitWeights::*weights)() const) {
  const Operands& o = call.operands;
  const std::int64_t rows = rows_of(call);
  const auto x = o.view(Arg::kX, {rows, -1}), offsets = o.flat(Arg::kOffsets), weight = (o.param().*weights)();
  if (!call.backward())
    return [=, common = call.common, y = o.view(Arg::kY, {rows, -1})](RunState&, math::Scratch& s) mutable {
      model::experts_forward(common.context(s), x, offsets, weight, y);
    };
  const auto d_y = o.view(Arg::kDY, {rows, -1});
  auto d_x = o.view(Arg::kDX, {rows, -1}), d_weight = (o.grad().*weights)();
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::experts_backward(common.context(s), d_y, x, offsets, weight, d_x, d_weight);
  };
}

Kernel bind_expert_up(const PartCall& call) {
  return bind_products(call, &UnitWeights::expert_up);
}

Kernel bind_expert_down(const PartCall& call) {
  return bind_products(call, &UnitWeights::expert_down);
}

Kernel bind_expert_activation(const PartCall& call) {
  const Operands& o = call.operands;
  const std::int64_t rows = rows_of(call);
  const auto up = o.view(Arg::kX, {rows, -1});
  at::Tensor offsets;
  if (o.has(Arg::kOffsets)) offsets = o.flat(Arg::kOffsets);
  if (!call.backward())
    return [=, common = call.common, a = o.view(Arg::kY, {rows, -1})](RunState&, math::Scratch& s) mutable {
      const std::int64_t n = present(offsets, rows);
      auto made = a.narrow(0, 0, n);
      model::activation_forward(common.context(s), up.narrow(0, 0, n), made);
    };
  return [=, common = call.common, d_a = o.view(Arg::kDY, {rows, -1}), d_up = o.view(Arg::kDX, {rows, -1})](
             RunState&, math::Scratch& s) mutable {
    const std::int64_t n = present(offsets, rows);
    auto made = d_up.narrow(0, 0, n);
    model::activation_backward(common.context(s), d_a.narrow(0, 0, n), up.narrow(0, 0, n), made);
  };
}

Kernel bind_shared_up(const PartCall& call) {
  const Operands& o = call.operands;
  const auto x = o.rows(Arg::kX);
  const auto up = o.param().shared_up();
  if (!call.backward())
    return [=, common = call.common, y = o.rows(Arg::kY)](RunState&, math::Scratch& s) mutable {
      model::shared_up_forward(common.context(s), x, up, y);
    };
  return
      [=, common = call.common, d_y = o.rows(Arg::kDY), d_x = o.rows(Arg::kDX), d_up = o.grad().shared_up()](
          RunState&, math::Scratch& s) mutable { model::shared_up_backward(common.context(s), d_y, x, up, d_x, d_up); };
}

}  // namespace

std::vector<PartBinding> expert_bindings() {
  return {{arch::Part::kExpertUp, bind_expert_up},
          {arch::Part::kExpertActivation, bind_expert_activation},
          {arch::Part::kExpertDown, bind_expert_down},
          {arch::Part::kSharedUp, bind_shared_up}};
}

}  // namespace molen::exec
