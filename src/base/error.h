// The three kinds of failure (docs/decisions/0002-errors.md):
//   expected and handled by the caller   -> Result<T> (base/result.h)
//   the user's input is wrong            -> UsageError, exit code 2
//   the run cannot continue              -> Error, exit code 1; IoError, DamagedError and VersionError when the caller
//                                           handles them differently (docs/decisions/0008-files-checkpoints-owners.md)
// A broken invariant of molen itself is a MOLEN_CHECK: on in release builds, no side effects in its condition.
// Exceptions are caught only where something can be done about them (a rank tells the others, telemetry is retried);
// train and apps catch the rest.
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

// The user's input cannot be honoured; the message names file, line and key if there are any.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The path does not exist.
class MissingFileError : public UsageError {
 public:
  using UsageError::UsageError;
};

// The storage cannot do the operation now (EIO, ESTALE, EMFILE, ENOSPC, ...). The error says nothing about the content:
// the same command may work later.
class IoError : public Error {
 public:
  template <class... Args>
  explicit IoError(int code, fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)), code_(code) {}
  int code() const { return code_; }  // errno

 private:
  int code_;
};

// The content differs from what was written: another hash, cut short, a file missing.
class DamagedError : public Error {
 public:
  using Error::Error;
};

// A complete file, but in the format of another version of molen.
class VersionError : public Error {
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
