// A unit's flat parameters (or gradients) as the weights that the functions of model/parts.h take.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "arch/parameters.h"
#include "model/experts.h"
#include "model/parts.h"
#include "program/ir/layout.h"

namespace molen::exec {

class UnitWeights {
 public:
  // Makes the weights of one of the unit's layers or, with layer -1, those that belong to no layer. `flat` has
  // unit.elements elements and is viewed, not copied.
  UnitWeights(const arch::Architecture& arch, const std::vector<arch::Parameter>& parameters, const program::Unit& unit,
              std::int64_t layer, at::Tensor flat)
      : arch_(arch), parameters_(parameters), unit_(unit), layer_(layer), flat_(std::move(flat)) {}

  // Returns an undefined tensor when the architecture has no such parameter. `rows` > 0 extends the view over the
  // parameters after it, as for q|k|v, gate|up and the matrices of all experts.
  at::Tensor weight(arch::Role role, std::int64_t rows = 0) const;

  model::Linear qkv() const { return linear(arch::Role::kQuery, arch::Role::kQueryBias, arch_.qkv_size()); }
  model::Linear output() const { return linear(arch::Role::kOutput, arch::Role::kOutputBias); }
  model::Linear up() const {
    return arch_.gated() ? linear(arch::Role::kGate, arch::Role::kUpBias, arch_.up_size())
                         : linear(arch::Role::kUp, arch::Role::kUpBias);
  }
  model::Linear down() const { return linear(arch::Role::kDown, arch::Role::kDownBias); }
  model::NormWeights attention_norm() const { return norm(arch::Role::kAttentionNorm, arch::Role::kAttentionNormBias); }
  model::QkNormWeights qk_norm() const { return {weight(arch::Role::kQueryNorm), weight(arch::Role::kKeyNorm)}; }
  model::NormWeights mlp_norm() const { return norm(arch::Role::kMlpNorm, arch::Role::kMlpNormBias); }
  model::RouterWeights router() const { return {weight(arch::Role::kRouter), weight(arch::Role::kRouterBias)}; }
  // Returns the matrices of all experts of a layer, [E, out, in]; they are stored one after another.
  at::Tensor expert_up() const {
    return of_experts(arch_.gated() ? arch::Role::kExpertGate : arch::Role::kExpertUp, arch_.expert_up_size());
  }
  model::Linear shared_up() const {
    return {weight(arch_.gated() ? arch::Role::kSharedGate : arch::Role::kSharedUp, arch_.shared_up_size()), {}};
  }
  model::Linear shared_down() const { return {weight(arch::Role::kSharedDown), {}}; }
  at::Tensor expert_down() const { return of_experts(arch::Role::kExpertDown, arch_.hidden); }
  model::NormWeights final_norm() const { return norm(arch::Role::kFinalNorm, arch::Role::kFinalNormBias); }

 private:
  model::Linear linear(arch::Role weight_role, arch::Role bias_role, std::int64_t rows = 0) const {
    return {weight(weight_role, rows), arch_.biases ? weight(bias_role, rows) : at::Tensor()};
  }
  at::Tensor of_experts(arch::Role role, std::int64_t out) const;
  model::NormWeights norm(arch::Role weight_role, arch::Role bias_role) const {
    if (arch_.norm == arch::Norm::kLayerPlain) return {};
    return {weight(weight_role), arch_.norm == arch::Norm::kLayer ? weight(bias_role) : at::Tensor()};
  }

  const arch::Architecture& arch_;
  const std::vector<arch::Parameter>& parameters_;
  const program::Unit& unit_;
  std::int64_t layer_;
  at::Tensor flat_;
};

}  // namespace molen::exec
