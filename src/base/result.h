// Result<T>: a value, or the reason why there is none. For failures that a caller expects and handles (a meter that
// this machine lacks, a file that may be absent). Ignoring a Result does not compile.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"

namespace molen {

struct Failure {
  std::string reason;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}            // NOLINT: implicit by intent
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  const T& value() const& {
    MOLEN_CHECK(ok(), "value of a failed result: {}", reason());
    return std::get<0>(state_);
  }
  T&& value() && {
    MOLEN_CHECK(ok(), "value of a failed result: {}", reason());
    return std::get<0>(std::move(state_));
  }
  // Returns the reason why there is no value; empty when there is one.
  std::string reason() const { return ok() ? std::string() : std::get<1>(state_).reason; }

 private:
  std::variant<T, Failure> state_;
};

}  // namespace molen
