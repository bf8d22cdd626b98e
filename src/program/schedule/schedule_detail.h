// Internals of the code that makes schedules.
#pragma once

#include "program/schedule/schedule.h"

namespace molen::program::detail {

// These functions fill the empty lists of a schedule whose counts and placement are set.
void fill_zb_h1(Schedule& schedule);
void fill_zb_v(Schedule& schedule);

}  // namespace molen::program::detail
