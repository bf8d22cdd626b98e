// The options of `molen calibrate`; free of ATen, so that the command line is too.
#pragma once

#include <cstdint>
#include <limits>
#include <map>

#include "arch/parts.h"
#include "base/dtype.h"

namespace molen::measure {

struct CalibrateOptions {
  DType compute = DType::kF32;
  arch::Kernels kernels = arch::Kernels::kFused;
  std::map<arch::Part, arch::Kernels> other_kernels;  // as in program::Setting; measured beside `kernels`
  int threads = 1;
  int repeats = 2;  // timed steps of each shape, after a warm-up, in each round; large shapes have one
  int rounds = 3;   // at most
  // Time for the measurement. The first round measures all shapes; later ones measure those for which time is left.
  double seconds = std::numeric_limits<double>::infinity();
  // Largest residual width of the measured models. 0: all models, or up to kWidestReference with the reference kernels.
  std::int64_t widest = 0;
};

}  // namespace molen::measure
