#include "checkpoint/transpose.h"

#include <algorithm>

#include "base/error.h"

namespace molen::checkpoint {
namespace {

template <class Word>
void transpose_words(const void* source, std::int64_t rows, std::int64_t columns, void* destination) {
  constexpr std::int64_t kTile = 32;  // two tiles fit the first-level cache
  const auto* in = static_cast<const Word*>(source);
  auto* out = static_cast<Word*>(destination);
  for (std::int64_t i0 = 0; i0 < rows; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kTile) {
      const std::int64_t i1 = std::min(rows, i0 + kTile), j1 = std::min(columns, j0 + kTile);
      for (std::int64_t j = j0; j < j1; ++j)
        for (std::int64_t i = i0; i < i1; ++i) out[j * rows + i] = in[i * columns + j];
    }
  }
}

}  // namespace

void transpose(const void* source, std::int64_t rows, std::int64_t columns, std::int64_t size, void* destination) {
  switch (size) {
    case 1:
      return transpose_words<std::uint8_t>(source, rows, columns, destination);
    case 2:
      return transpose_words<std::uint16_t>(source, rows, columns, destination);
    case 4:
      return transpose_words<std::uint32_t>(source, rows, columns, destination);
    case 8:
      return transpose_words<std::uint64_t>(source, rows, columns, destination);
    default:
      throw Error("transposition of elements of {} bytes", size);
  }
}

}  // namespace molen::checkpoint
