// Quantities as types, so that bytes cannot be passed for a count or seconds for joules.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace molen {

template <class Tag, class Rep>
struct Quantity {
  Rep value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, Rep k) { return Quantity(a.value * k); }
  friend constexpr Quantity operator*(Rep k, Quantity a) { return Quantity(a.value * k); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Seconds = Quantity<struct SecondsTag, double>;
using Joules = Quantity<struct JoulesTag, double>;
using Watts = Quantity<struct WattsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;  // a count of floating-point operations, not a rate

constexpr Watts operator/(Joules e, Seconds t) {
  return Watts(e.value / t.value);
}
constexpr Joules operator*(Watts p, Seconds t) {
  return Joules(p.value * t.value);
}

// Return texts such as "1.50 GiB", "312 B"; "2.31 s", "12.3 ms"; "1.2 k", "450 B" (B is 10^9 here).
std::string human(Bytes bytes);
std::string human(Seconds seconds);
std::string human_count(double count);
// Returns a text such as "12.3 GFLOP".
std::string human(Flops flops);
// Returns "1 rank", "2 ranks"; a noun that ends in ch gets "es".
std::string counted(std::int64_t count, std::string_view noun);

}  // namespace molen
