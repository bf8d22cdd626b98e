#include "infer/weights.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "exec/arena.h"

namespace molen::infer {

Weights::Weights(arch::Architecture arch, DType dtype)
    : arch_(std::move(arch)),
      dtype_(dtype),
      parameters_(arch::parameters(arch_)),
      units_(program::make_units({{0, 0, arch_.layers}}, parameters_)) {
  for (const auto& unit : units_) flat_.push_back(at::zeros({unit.elements}, exec::to_aten(dtype)));
}

at::Tensor Weights::parameter(std::size_t index) const {
  const auto& p = parameters_.at(index);
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const auto& entry : units_[u].entries)
      if (entry.parameter == static_cast<int>(index))
        return flat_[u].narrow(0, entry.offset, p.elements()).view(p.shape);
  throw Error("parameter {} has no unit", p.name);
}

at::Tensor Weights::unit(const std::string& name) const {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].name == name) return flat_[u];
  throw Error("the weights of {} have no unit {}", arch_.name, name);
}

at::Tensor Weights::head() const {
  const arch::Role table = arch_.tied ? arch::Role::kEmbedding : arch::Role::kHead;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].role == table) return parameter(i);
  throw Error("the weights of {} have no head", arch_.name);
}

}  // namespace molen::infer
