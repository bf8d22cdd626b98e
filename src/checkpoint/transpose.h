// Transposition of row-major matrices of any element size.
#pragma once

#include <cstdint>

namespace molen::checkpoint {

// Sets destination[j][i] = source[i][j] for a source of `rows` x `columns` elements of `size` bytes (1, 2, 4 or 8).
void transpose(const void* source, std::int64_t rows, std::int64_t columns, std::int64_t size, void* destination);

}  // namespace molen::checkpoint
