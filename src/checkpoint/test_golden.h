// The contents of the golden checkpoints in tests/golden/checkpoint: bits that follow from a tensor's name and an
// element's position alone, including NaNs, zeros of both signs and denormal numbers.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace molen::checkpoint::golden {

struct Tensor {
  std::string_view name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

inline const std::array<Tensor, 8>& tensors() {
  static const std::array<Tensor, 8> all{{{"model.embed_tokens.weight", DType::kF32, {12, 6}},
                                          {"model.layers.0.mlp.down_proj.weight", DType::kBF16, {5, 8}},
                                          {"model.layers.0.input_layernorm.weight", DType::kF32, {33}},
                                          {"optimizer.m/model.embed_tokens.weight", DType::kF32, {7, 9}},
                                          {"optimizer.v/cube", DType::kF64, {3, 4, 5}},
                                          {"half", DType::kF16, {3, 3}},
                                          {"scalar", DType::kI64, {}},
                                          {"empty", DType::kF32, {0, 4}}}};
  return all;
}

inline std::int64_t elements_of(const Tensor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t size : tensor.shape) product *= size;
  return product;
}

// Returns all elements, one after the other.
inline std::vector<char> bytes_of(const Tensor& tensor) {
  const auto width = static_cast<std::size_t>(size_of(tensor.dtype));
  std::vector<char> bytes(static_cast<std::size_t>(elements_of(tensor)) * width);
  std::uint64_t seed = 0xcbf29ce484222325ULL;
  for (const char c : tensor.name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  for (std::size_t i = 0; i < bytes.size() / width; ++i) {
    std::uint64_t bits = (seed + i * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;
    bits ^= bits >> 29;
    if (i % 11 == 3) bits = 0;
    if (i % 11 == 5) bits = std::uint64_t{1} << (8 * width - 1);  // a sign alone
    if (i % 11 == 7) bits = ~std::uint64_t{0};                    // NaN
    if (i % 11 == 9) bits = i;                                    // denormal
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

}  // namespace molen::checkpoint::golden
