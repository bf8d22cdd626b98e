// For the tests of a mixture of experts: random values, the complex step, and scratch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <functional>
#include <random>
#include <vector>

#include "math/scratch.h"

namespace molen::math::testing {

using Complex = std::complex<double>;
template <class T>
using Values = std::vector<T>;

inline Values<double> random_values(std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Values<double> v(static_cast<std::size_t>(count));
  for (double& x : v) x = static_cast<float>(normal(engine));  // so that float holds the same values
  return v;
}
template <class To, class From>
Values<To> as(const Values<From>& v) {
  return {v.begin(), v.end()};
}

// Returns d/dx of f(x), one element of x at a time: imag f(x + ih) / h with h = 1e-50, without subtraction.
inline Values<double> complex_step(const Values<double>& x, const std::function<Complex(const Values<Complex>&)>& f) {
  constexpr double kStep = 1e-50;
  Values<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    Values<Complex> moved = as<Complex>(x);
    moved[i] += Complex(0.0, kStep);
    gradient[i] = f(moved).imag() / kStep;
  }
  return gradient;
}

// Scratch with a guard after it. `intact` returns whether the guard is unchanged.
struct GuardedScratch {
  static constexpr std::int64_t kGuard = 128;
  explicit GuardedScratch(std::int64_t bytes)
      : memory(static_cast<std::size_t>((bytes + kGuard) / 4), 77.0f), scratch(memory.data(), bytes) {
    std::fill(memory.begin(), memory.end() - kGuard / 4, NAN);
  }
  bool intact() const {
    for (std::size_t i = 1; i <= kGuard / 4; ++i)
      if (memory[memory.size() - i] != 77.0f) return false;
    return true;
  }
  void* data() { return memory.data(); }
  std::span<std::byte> span() {
    return {reinterpret_cast<std::byte*>(memory.data()), static_cast<std::size_t>(scratch.capacity())};
  }
  Values<float> memory;
  Scratch scratch;
};

}  // namespace molen::math::testing
