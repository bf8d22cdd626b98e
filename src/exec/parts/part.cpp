#include "exec/parts/part.h"

#include <array>

#include "base/error.h"

namespace molen::exec {
namespace {

using Bindings = std::array<Kernel (*)(const PartCall&), arch::kAllParts.size()>;

Bindings all_bindings() {
  using Family = std::vector<PartBinding> (*)();
  constexpr Family kFamilies[] = {embedding_bindings, norm_product_bindings, qk_norm_bindings,    rotate_bindings,
                                  attention_bindings, projection_bindings,   activation_bindings, routing_bindings,
                                  expert_bindings,    norm_bindings,         head_bindings};
  Bindings all{};
  for (const Family family : kFamilies)
    for (const PartBinding& b : family()) all.at(static_cast<std::size_t>(b.part)) = b.bind;
  for (const arch::Part part : arch::kAllParts)
    MOLEN_CHECK(all.at(static_cast<std::size_t>(part)), "part {} is not bound", arch::name_of(part));
  return all;
}

}  // namespace

Kernel bind_part(const PartCall& call) {
  static const Bindings all = all_bindings();
  return all.at(static_cast<std::size_t>(call.op.part))(call);
}

}  // namespace molen::exec
