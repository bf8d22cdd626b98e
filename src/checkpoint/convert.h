// Conversion between floating element types, rounded once to nearest, ties to even; NaN stays NaN, overflow gives
// infinity.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace molen::checkpoint {

bool is_floating(DType dtype);
// `count` elements; the two buffers do not overlap. Equal types copy bits. Both must be floating.
void convert(DType from, const void* source, DType to, void* destination, std::int64_t count);

}  // namespace molen::checkpoint
