// Extrapolates costs to conditions that a calibration did not measure.
#pragma once

#include "sim/calibration.h"

namespace molen::sim {

// Extrapolates from the entries with the same threads per rank, precision and kernels. Fails when none of them is a
// sensible basis.
Result<MeasuredCosts> extrapolate(const Calibration& calibration, const Conditions& wanted);

}  // namespace molen::sim
