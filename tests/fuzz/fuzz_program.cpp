// The step program's text: a text that parses is printed and read back as the same program, and the verifier must not
// crash on it; a program that the verifier accepts must have a memory plan.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "program/memory/memory.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto p = molen::program::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(molen::program::parse(molen::program::print(p), "printed") == p)) __builtin_trap();
    // The verifier can handle larger programs, but too slowly for a fuzzer.
    if (p.num_ops() > 4096 || p.buffers.size() > 4096) return 0;
    if (molen::program::verify(p).empty()) molen::program::plan_memory(p);
  } catch (const molen::UsageError&) {
  }
  return 0;
}
