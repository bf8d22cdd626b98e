#include "exec/weights.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace molen::exec {

at::Tensor UnitWeights::weight(arch::Role role, std::int64_t rows) const {
  for (const auto& entry : unit_.entries) {
    const auto& parameter = parameters_[static_cast<std::size_t>(entry.parameter)];
    if (parameter.role != role || parameter.layer != layer_) continue;
    std::vector<std::int64_t> shape = parameter.shape;
    if (rows > 0) shape[0] = rows;
    std::int64_t elements = 1;
    for (const std::int64_t n : shape) elements *= n;
    return flat_.narrow(0, entry.offset, elements).view(shape);
  }
  return {};
}

at::Tensor UnitWeights::of_experts(arch::Role role, std::int64_t out) const {
  // When there are several expert ranks, each has only its own experts in the unit.
  const std::int64_t experts = std::ranges::count_if(unit_.entries, [&](const program::UnitEntry& entry) {
    const auto& parameter = parameters_[static_cast<std::size_t>(entry.parameter)];
    return parameter.role == role && parameter.layer == layer_;
  });
  return weight(role, experts * out).view({experts, out, -1});
}

}  // namespace molen::exec
