// What a test may do under a sanitizer, which makes it about fifteen times as slow. For tests.
#pragma once

#include <cstddef>

namespace molen {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A test of thousands of like cases takes every case in a release build, and every eleventh under a sanitizer.
inline constexpr std::size_t kStride = kSanitized ? 11 : 1;
// One of tens of thousands, each of which costs milliseconds.
inline constexpr std::size_t kLongStride = kSanitized ? 101 : 1;

}  // namespace molen
