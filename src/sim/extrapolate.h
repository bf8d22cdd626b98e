// Costs under conditions that a calibration did not measure.
#pragma once

#include "sim/calibration.h"

namespace molen::sim {

// From the entries with the same threads a rank, precision and kernels; a failure where none of them is a sensible
// basis.
Result<Costs> extrapolate(const Calibration& calibration, const Conditions& wanted);

}  // namespace molen::sim
