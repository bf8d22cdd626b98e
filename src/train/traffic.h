// What a rank's communicators really moved in a step, beside what its program says.
#pragma once

#include <map>
#include <utility>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/payload.h"

namespace molen::train {

// By axis and kind of call; those that were never made are left out.
using Traffic = std::map<std::pair<program::Axis, comm::CallKind>, comm::Traffic>;

Traffic traffic_of(const exec::Executor& executor);  // so far
Traffic since(const Traffic& before, const Traffic& now);

// Throws Error naming axis, call and both figures unless every axis and kind of call has the calls and the payload that
// the program says.
void require_planned(const Traffic& moved, const program::Payloads& planned);

}  // namespace molen::train
