// A checkpoint's state.json and index.json: refused with a UsageError or VersionError, or the slices tile each tensor.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto state = checkpoint::parse_state(text, "fuzz");
    if (state.step < 0) std::abort();
    for (const auto& [name, hash] : state.attachments)
      if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) std::abort();
  } catch (const UsageError&) {
  } catch (const VersionError&) {
  }
  try {
    for (const auto& [name, tensor] : checkpoint::parse_index(text, "fuzz")) {
      for (const std::int64_t n : tensor.shape)
        if (n < 0) std::abort();
      if (!checkpoint::tiling_problem(tensor).empty()) std::abort();
      std::int64_t elements = 0;
      for (const checkpoint::Slice& slice : tensor.slices) {
        if (slice.rank < 0 || slice.elements() <= 0 || slice.hashes.empty()) std::abort();
        elements += slice.elements();
      }
      if (elements != tensor.elements()) std::abort();
    }
  } catch (const UsageError&) {
  } catch (const VersionError&) {
  }
  return 0;
}
