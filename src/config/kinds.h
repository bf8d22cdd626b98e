// Kinds of values. A kind says how a value is read from JSON, written back, and named in errors and on the reference
// page. A field of the list consists of a key, a member and a kind.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "config/config.h"

namespace molen::config::kinds {

template <class T>
struct Kind {
  std::string type;
  std::function<T(const Json&)> read;
  std::function<Json(const T&)> write = [](const T& value) { return Json(value); };
  std::vector<std::string> choices = {};
  bool textual = false;
};

// Throws UsageError("expected ..., got ...").
[[noreturn]] void reject(std::string_view expected, const Json& got, std::string_view hint = "");

// The largest count, chosen so that a product of two counts fits in 64 bits.
inline constexpr std::int64_t kManyMost = std::int64_t{1} << 31;

Kind<std::int64_t> positive(std::int64_t most = kManyMost);
Kind<std::int64_t> natural(std::int64_t most = kManyMost);  // 0 and up
Kind<double> positive_number();
Kind<double> natural_number();
Kind<double> below_one();  // [0, 1)
Kind<double> at_least_one();
Kind<double> at_most_zero();
Kind<double> loss_scale();  // [1, 2^126], as optim/loss_scale.h
Kind<double> share();       // 0.05 or "5 %"
Kind<bool> boolean();
Kind<std::string> text();
Kind<std::string> path();
Kind<std::string> run_name();  // one path component
Kind<std::string> choice(std::vector<std::string> choices);
Kind<std::string> choice_or_file(std::vector<std::string> choices);
Kind<Horizon> horizon();  // greater than zero
Kind<Horizon> horizon_or_zero();
Kind<Seconds> time();
Kind<std::optional<Seconds>> time_or_auto();
Kind<Watts> power();
Kind<Joules> energy();
Kind<Kilograms> mass();
Kind<Recompute> recompute();
Kind<RopeScaling> rope_scaling();
Kind<std::optional<std::int64_t>> positive_or_auto();
Kind<std::int64_t> half_or_positive();  // "half" is 0
Kind<std::vector<std::string>> names(std::vector<std::string> choices = {});
Kind<std::vector<std::string>> axis_order();
Kind<std::vector<std::int64_t>> positives(std::string expected);  // a list, or a single number
Kind<std::vector<DataSource>> sources();

// Makes the field of a member that is always set.
template <class Table, class T>
Field make(std::string key, Table Config::*table, T Table::*member, Kind<T> kind, Effect effect, std::string meaning) {
  return {.key = std::move(key),
          .type = kind.type,
          .choices = kind.choices,
          .meaning = std::move(meaning),
          .effect = effect,
          .textual = kind.textual,
          .read = [=](Config& c, const Json& value) { (c.*table).*member = kind.read(value); },
          .write = [=](const Config& c) { return kind.write((c.*table).*member); }};
}

// Makes the field of a member that may be absent: "none" resets it.
template <class Table, class T>
Field make(std::string key, Table Config::*table, std::optional<T> Table::*member, Kind<T> kind, Effect effect,
           std::string meaning) {
  return {.key = std::move(key),
          .type = kind.type,
          .choices = kind.choices,
          .meaning = std::move(meaning),
          .effect = effect,
          .textual = kind.textual,
          .read =
              [=](Config& c, const Json& value) {
                if (value == "none")
                  ((c.*table).*member).reset();
                else
                  (c.*table).*member = kind.read(value);
              },
          .write =
              [=](const Config& c) {
                const std::optional<T>& value = (c.*table).*member;
                return value ? kind.write(*value) : Json();
              }};
}

}  // namespace molen::config::kinds
