// Constant buffers (program::Lifetime::kConstant): tables that follow from the architecture and the rank's place.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "mesh/mesh.h"
#include "program/ir/program.h"

namespace molen::exec {

// Fills the constant buffers of a rank: RoPE's table for the positions that the rank has of a sequence, and ALiBi's
// slopes for the rank's heads. `flat` returns a buffer's memory.
void fill_constants(const program::Program& program, const mesh::PerAxis& coordinates,
                    const std::function<at::Tensor(int buffer)>& flat);

}  // namespace molen::exec
