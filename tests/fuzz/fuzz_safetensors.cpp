// libFuzzer target: any bytes read as a safetensors file give a UsageError or a header whose tensors cover the buffer
// exactly.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto header = molen::checkpoint::parse_safetensors({reinterpret_cast<const char*>(data), size}, size, "fuzz");
    std::uint64_t position = header.buffer_begin;
    for (const auto& tensor : header.tensors) {
      if (tensor.begin + header.buffer_begin != position || tensor.elements() < 0) std::abort();
      position = header.buffer_begin + tensor.end;
    }
    if (position != size) std::abort();
  } catch (const molen::UsageError&) {
  }
  return 0;
}
