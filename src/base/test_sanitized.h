// Reduced test sizes under a sanitizer, which makes a test about fifteen times as slow.
#pragma once

#include <cstddef>

namespace molen {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)  // clang
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// For a test of thousands of similar cases: every case in a release build, every eleventh under a sanitizer.
inline constexpr std::size_t kStride = kSanitized ? 11 : 1;
// For a test of tens of thousands of cases that each cost milliseconds.
inline constexpr std::size_t kLongStride = kSanitized ? 101 : 1;

}  // namespace molen
