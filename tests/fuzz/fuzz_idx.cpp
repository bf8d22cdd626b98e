// Token indexes: refused with a UsageError, or consistent. The first byte of the input is the size of the .bin file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  if (size == 0) return 0;
  try {
    std::int64_t documents = 0, tokens = 0;
    const molen::data::ShardIndex index =
        molen::data::parse_index(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1), data[0], "fuzz",
                                 [&](std::int64_t first, std::int64_t end) {
                                   if (first != tokens || end < first) std::abort();
                                   tokens = end;
                                   ++documents;
                                 });
    if (tokens != index.tokens || tokens * size_of(index.dtype) != data[0]) std::abort();
    if (documents != index.documents) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
