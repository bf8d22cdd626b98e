// The requirement on one operand of an op, as the verifier's rules find it.
#pragma once

#include <cstdint>

#include "program/values/operands.h"

namespace molen::program {

struct Need {
  Operand operand;
  // The buffer that holds the operand must have this type and these properties.
  DType dtype{};
  std::int64_t elements = 0;
  Lifetime lifetime{};
  Place place{};
  Range extent = Range::kAll;
};

}  // namespace molen::program
