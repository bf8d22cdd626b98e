#include "exec/parts/part.h"

namespace molen::exec {
namespace {

Kernel bind_rotate(const PartCall& call) {
  auto rows = call.operands.rows(call.backward() ? Arg::kDQkv : Arg::kQkv);
  return [=, common = call.common, rope = call.operands.rope(), backward = call.backward()](
             RunState&, math::Scratch& s) mutable { model::rotate(common.context(s), rope, backward, rows); };
}

}  // namespace

std::vector<PartBinding> rotate_bindings() {
  return {{arch::Part::kRotate, bind_rotate}};
}

}  // namespace molen::exec
