// Constant buffers (program::Lifetime::kConstant): tables that follow from the architecture and the rank's place.
#pragma once

#include "exec/bind.h"

namespace molen::exec {

// Fills the constant buffers of a rank: RoPE's table for the positions that the rank has of a sequence
// (BindContext::positions), and ALiBi's slopes for the rank's heads.
void fill_constants(const BindContext& context);

}  // namespace molen::exec
