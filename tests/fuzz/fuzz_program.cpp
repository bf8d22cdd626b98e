// The step program's text: whatever parses is printed and read back as the same program, and must survive the verifier;
// what the verifier accepts must have a memory plan.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "program/memory.h"
#include "program/text.h"
#include "program/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto p = molen::program::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(molen::program::parse(molen::program::print(p), "printed") == p)) __builtin_trap();
    // Larger ones are sound work for the verifier but too slow for a fuzzer.
    if (p.num_ops() > 4096 || p.buffers.size() > 4096) return 0;
    if (molen::program::verify(p).empty()) molen::program::plan_memory(p);
  } catch (const molen::UsageError&) {
  }
  return 0;
}
