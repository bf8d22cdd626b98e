// The three kinds of failure (docs/decisions/0002-errors.md):
//   expected and answered by the caller  -> Result<T> (base/result.h)
//   the user's input is wrong            -> UsageError, exit code 2
//   the run cannot go on                 -> Error, exit code 1
// A broken invariant of ours is MOLEN_CHECK: on in release builds, no side effects in its condition.
// Exceptions are caught in train and apps only.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace molen {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
  template <class... Args>
  requires(sizeof...(Args) > 0) explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// What the user wrote cannot be honoured; the message names file, line and key where there are any.
class UsageError : public Error {
 public:
  using Error::Error;
};

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

}  // namespace molen

#define MOLEN_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::molen::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
