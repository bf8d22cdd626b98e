// The measurement behind `precision.compute = "auto"` and `molen doctor`.
#pragma once

#include "plan/resolve.h"

namespace molen::train {

plan::PrecisionRates measure_precision(int threads);

}  // namespace molen::train
