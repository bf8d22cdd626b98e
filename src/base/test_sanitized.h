// Reduced test sizes, used under a sanitizer (which makes a test about fifteen times as slow) and outside of the
// nightly run.
#pragma once

#include <cstddef>
#include <cstdlib>

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
// Returns whether the longest tests run all cases, as in `tools/nightly.sh exhaustive`.
inline bool exhaustive() {
  static const bool set = std::getenv("MOLEN_EXHAUSTIVE") != nullptr;
  return set;
}
// For a test of tens of thousands of cases that each cost milliseconds: every 17th case in a release build, every 101st
// under a sanitizer.
inline std::size_t long_stride() {
  return exhaustive() ? 1 : kSanitized ? 101 : 17;
}

}  // namespace molen
