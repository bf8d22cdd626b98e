// The weights of a whole model on one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/dtype.h"
#include "exec/weights.h"
#include "program/ir/layout.h"

namespace molen::infer {

// The weights of a whole model in fp32 (or fp64), divided into units in the same way as in the executor.
class Weights {
 public:
  Weights(arch::Architecture arch, DType dtype);
  const arch::Architecture& arch() const { return arch_; }
  DType dtype() const { return dtype_; }
  // Returns the kernels that compute in this type.
  arch::Kernels kernels() const { return dtype_ == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kFused; }
  const std::vector<arch::Parameter>& parameters() const { return parameters_; }
  // Returns the tensor of the parameter's elements, for the caller to fill.
  at::Tensor parameter(std::size_t index) const;
  // Returns all elements of a unit. Throws Error when there is no unit of that name.
  at::Tensor unit(const std::string& name) const;
  // Returns the table that turns the rows after the final norm into logits, [V, d].
  at::Tensor head() const;

 private:
  arch::Architecture arch_;
  DType dtype_;
  std::vector<arch::Parameter> parameters_;
  std::vector<program::Unit> units_;
  std::vector<at::Tensor> flat_;
};

}  // namespace molen::infer
