// Extrapolates costs to conditions that a calibration did not measure.
#pragma once

#include "sim/calibration.h"

namespace molen::sim {

// Uses the entries with the same threads per rank, precision and kernels; fails when none of them is a sensible basis.
Result<Costs> extrapolate(const Calibration& calibration, const Conditions& wanted);

}  // namespace molen::sim
