// How the norms of queries and keys lie in rows of q|k|v. Plain declarations only, as in vector_kernels.h.
#pragma once

#include <stdint.h>

namespace molen::math {

// `groups` groups of `length` values each, one after the other. Each group is normalised alone, and all groups share
// one weight.
struct NormGroups {
  int64_t groups, length;
};
// A row has `width` values: the queries, the keys, and after them the values of attention, which are copied.
struct QkNormSizes {
  int64_t width;
  NormGroups query, key;
};

}  // namespace molen::math
