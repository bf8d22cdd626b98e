// Element-wise reduction of arrays of equal length, by element type.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace molen::comm {

// Computes target[i] = target[i] op source[i]. bf16 and fp16 are combined in fp32 and rounded.
void accumulate(void* target, const void* source, std::int64_t count, DType dtype, Reduce op);

// Computes out[i] = sources[0][i] op sources[1][i] op ..., in this order. bf16 and fp16 are combined in fp32 and
// rounded once. `out` may be one of the sources.
void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op);

// Throws Error unless elements of `dtype` can be reduced.
void check_reducible(DType dtype);

// Returns the number of elements before rank `rank`'s block.
std::int64_t offset_of(std::span<const std::int64_t> counts, int rank);
// Returns the sum of all blocks. Throws Error unless there are `ranks` counts, none of them negative.
std::int64_t total_of(std::span<const std::int64_t> counts, int ranks);

}  // namespace molen::comm
