// The experts of a sparse layer, on rows in expert order.
#include "model/experts.h"
#include "exec/parts/part.h"
#include "program/values/tiles.h"

namespace molen::exec {
namespace {

// Returns the largest number of rows that the experts of this rank may have.
std::int64_t rows_of(const PartCall& call) {
  return arch::most_rows_of_experts(call.common.arch.sparse_experts(), call.common.shape.sequences(),
                                    call.ranks(mesh::Axis::kEp));
}

// The experts that an op computes: all of the rank, or those of a tile.
class ExpertsOfOp {
 public:
  explicit ExpertsOfOp(const PartCall& call) {
    const auto [first, end] =
        program::experts_of_tile(call.context.program, call.step.attributes.rows, call.op.portion);
    first_ = first, count_ = end - first;
    if (call.operands.has(Arg::kOffsets)) offsets_ = call.operands.flat(Arg::kOffsets).narrow(0, first_, count_ + 1);
  }
  // The first row of each expert, and the end.
  const at::Tensor& offsets() const { return offsets_; }
  at::Tensor matrices(const at::Tensor& of_all) const { return of_all.narrow(0, first_, count_); }
  // Returns the rows of the experts. With several expert ranks or a capacity, the routers decide how many there are.
  at::Tensor rows(const at::Tensor& all) const {
    if (!offsets_.defined()) return all;
    const auto* offsets = offsets_.data_ptr<std::int32_t>();
    return all.narrow(0, offsets[0], offsets[count_] - offsets[0]);
  }

 private:
  std::int64_t first_ = 0, count_ = 0;
  at::Tensor offsets_;
};

Kernel bind_products(const PartCall& call, at::Tensor (UnitWeights::*weights)() const) {
  const Operands& o = call.operands;
  const std::int64_t rows = rows_of(call);
  const ExpertsOfOp experts(call);
  const at::Tensor& offsets = experts.offsets();
  const auto x = o.view(Arg::kX, {rows, -1}), weight = experts.matrices((o.param().*weights)());
  if (!call.backward())
    return [=, common = call.common, y = o.view(Arg::kY, {rows, -1})](RunState&, math::Scratch& s) mutable {
      model::experts_forward(common.context(s), x, offsets, weight, y);
    };
  const auto d_y = o.view(Arg::kDY, {rows, -1});
  auto d_x = o.view(Arg::kDX, {rows, -1}), d_weight = experts.matrices((o.grad().*weights)());
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
  const ExpertsOfOp experts(call);
  const auto up = o.view(Arg::kX, {rows, -1});
  if (!call.backward())
    return [=, common = call.common, a = o.view(Arg::kY, {rows, -1})](RunState&, math::Scratch& s) mutable {
      auto made = experts.rows(a);
      model::activation_forward(common.context(s), experts.rows(up), made);
    };
  return [=, common = call.common, d_a = o.view(Arg::kDY, {rows, -1}), d_up = o.view(Arg::kDX, {rows, -1})](
             RunState&, math::Scratch& s) mutable {
    auto made = experts.rows(d_up);
    model::activation_backward(common.context(s), experts.rows(d_a), experts.rows(up), made);
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
