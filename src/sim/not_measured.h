// The measurements that a calibration lacks.
#pragma once

#include <string>

#include "base/error.h"

namespace molen::sim {

struct Conditions;

// A calibration has no measurement of an op.
class NotMeasured : public UsageError {
 public:
  using UsageError::UsageError;
};

// Returns the call of `molen calibrate` that measures the conditions ("`molen calibrate ...` measures it"), or why none
// can.
std::string call_that_measures(const Conditions& conditions);

}  // namespace molen::sim
