// Conversion between floating element types, rounded once to nearest, ties to even; NaN stays NaN, overflow gives
// infinity.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace molen::checkpoint {

bool is_floating(DType dtype);
// Converts `count` elements; the two buffers must not overlap. Equal types copy bits. Both types must be floating.
void convert(DType from, const void* source, DType to, void* destination, std::int64_t count);

}  // namespace molen::checkpoint
