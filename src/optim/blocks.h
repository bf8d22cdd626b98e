// Loops over flat values, block by block on several threads, compiled for the vectors of several processors.
#pragma once

#include <algorithm>
#include <cstdint>

namespace molen::optim {

inline constexpr std::int64_t kBlock = 1 << 14;

// Compiles a function for several processors; which one runs is chosen at run time. It applies to plain functions, not
// to templates. There are no clones under a sanitizer, because the code that chooses one runs before the sanitizer is
// ready. clang-format off
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOLEN_VECTOR_TARGETS __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define MOLEN_VECTOR_TARGETS
#endif
// clang-format on

// For the body of such a function, a template that is compiled into each of them.
#define MOLEN_INLINE inline __attribute__((always_inline))

// Calls f(first, count, block) for each block of [0, count).
template <class F>
void for_blocks(std::int64_t count, int threads, const F& f) {
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t b = 0; b < blocks; ++b) f(b * kBlock, std::min(kBlock, count - b * kBlock), b);
}

}  // namespace molen::optim
