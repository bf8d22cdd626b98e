// Manifests of shards and records of downloads: either refused with a UsageError, or unchanged after being written and
// read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/fetch.h"
#include "data/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace molen;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  try {
    const data::Manifest manifest = data::parse_manifest(text, "fuzz");
    if (data::parse_manifest(data::format_manifest(manifest), "again") != manifest) std::abort();
  } catch (const UsageError&) {
  }
  try {
    const data::FetchRecord record = data::parse_fetch_record(text, "fuzz");
    if (data::parse_fetch_record(data::format_fetch_record(record), "again") != record) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
