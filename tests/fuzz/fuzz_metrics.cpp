// A line of metrics.jsonl: either refused, or unchanged after being written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "store/metrics.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto m = molen::store::from_line({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (molen::store::to_line(molen::store::from_line(molen::store::to_line(m), "again")) != molen::store::to_line(m))
      std::abort();
  } catch (const molen::UsageError&) {
  }
  return 0;
}
