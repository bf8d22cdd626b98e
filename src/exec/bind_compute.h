#pragma once

#include "exec/bind.h"

namespace molen::exec {

// Binds a compute op for bind(). It has its own file because each part binds its own operands.
Kernel bind_compute(const BindContext& context, const program::Step& step, const program::Compute& op);

}  // namespace molen::exec
