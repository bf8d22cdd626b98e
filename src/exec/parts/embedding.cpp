#include "exec/parts/part.h"

namespace molen::exec {
namespace {

Kernel bind_embedding(const PartCall& call) {
  const Operands& o = call.operands;
  const auto ids = o.view(Arg::kIds, {o.tokens()});
  if (!call.backward()) {
    auto table = o.table(o.param(), Role::kEmbedding), positions = o.param().weight(Role::kPositions);
    auto x = o.rows(Arg::kY);
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::embed_forward(common.context(s), ids, table, positions, x);
    };
  }
  auto d_x = o.rows(Arg::kDY), d_table = o.table(o.grad(), Role::kEmbedding),
       d_positions = o.grad().weight(Role::kPositions);
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::embed_backward(common.context(s), ids, d_x, d_table, d_positions);
  };
}

}  // namespace

std::vector<PartBinding> embedding_bindings() {
  return {{arch::Part::kEmbed, bind_embedding}};
}

}  // namespace molen::exec
