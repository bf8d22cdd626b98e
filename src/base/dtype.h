// Element types of tensors, buffers and shards, with their sizes and names (safetensors' and PyTorch's).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace molen {

enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU16, kU8, kI8, kI16, kU32, kU64, kBool };

std::int64_t size_of(DType dtype);             // bytes of one element
std::string_view name_of(DType dtype);         // "fp64", "fp32", "bf16", "fp16", "i64", ...
DType dtype_from_name(std::string_view name);  // throws UsageError
// Unit round-off of a floating type (half the distance from 1 to the next value): 2^-53, 2^-24, 2^-8, 2^-11.
double unit_roundoff(DType dtype);

}  // namespace molen
