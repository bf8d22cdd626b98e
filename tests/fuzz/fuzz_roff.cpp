// Manual pages: any bytes are either refused or become non-empty blocks; UTF-8 text stays UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/roff.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen::data;
  const std::string_view page(reinterpret_cast<const char*>(data), size);
  const bool clean = is_clean_utf8(page);
  try {
    for (const Block& block : roff_blocks(page))
      if (block.text.empty() || (clean && !is_clean_utf8(block.text))) std::abort();
  } catch (const molen::UsageError&) {
  }
  return 0;
}
