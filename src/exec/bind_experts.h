// The exchange of rows between expert ranks (program::AllToAll).
#pragma once

#include "exec/bind.h"

namespace molen::exec {

Kernel bind_all_to_all(const BindContext& context, const program::Step& step, comm::Communicator* group);

}  // namespace molen::exec
