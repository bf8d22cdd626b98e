#include "base/dtype.h"

#include <array>
#include <cmath>

#include "base/error.h"

namespace molen {
namespace {
struct Entry {
  DType dtype;
  std::int64_t size;
  std::string_view name;
};
constexpr std::array kEntries{
    Entry{DType::kF64, 8, "fp64"}, Entry{DType::kF32, 4, "fp32"}, Entry{DType::kBF16, 2, "bf16"},
    Entry{DType::kF16, 2, "fp16"}, Entry{DType::kI64, 8, "i64"},  Entry{DType::kI32, 4, "i32"},
    Entry{DType::kU16, 2, "u16"},  Entry{DType::kU8, 1, "u8"},    Entry{DType::kI8, 1, "i8"},
    Entry{DType::kI16, 2, "i16"},  Entry{DType::kU32, 4, "u32"},  Entry{DType::kU64, 8, "u64"},
    Entry{DType::kBool, 1, "bool"}};
const Entry& entry(DType dtype) {
  const auto& e = kEntries.at(static_cast<std::size_t>(dtype));
  MOLEN_CHECK(e.dtype == dtype, "dtype table out of order");
  return e;
}
}  // namespace

std::int64_t size_of(DType dtype) {
  return entry(dtype).size;
}
std::string_view name_of(DType dtype) {
  return entry(dtype).name;
}

DType dtype_from_name(std::string_view name) {
  for (const auto& e : kEntries)
    if (e.name == name) return e.dtype;
  throw UsageError("unknown element type '{}'; known: fp64, fp32, bf16, fp16", name);
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      break;
  }
  throw Error("unit round-off of the integer type {}", name_of(dtype));
}

}  // namespace molen
