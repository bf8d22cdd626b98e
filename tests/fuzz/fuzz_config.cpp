// Configuration documents: refused with a UsageError, or read; a document that is read survives in its resolved form.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  config::Config c;
  try {
    c = config::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const UsageError&) {
    return 0;
  }
  if (!config::diff(c, config::parse(config::to_toml(c), "again")).empty()) std::abort();
  return 0;
}
