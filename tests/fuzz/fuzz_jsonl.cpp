// Lines of corpora, plain text and copyright files: refused with a UsageError, or read; everything that is read
// survives in its written form.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/dep5.h"
#include "data/jsonl.h"
#include "data/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace molen;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  data::JsonlParser parser;
  try {
    const data::JsonlRecord record = parser.parse(text, "fuzz");
    if (parser.parse(data::format_jsonl(record), "again").text != record.text) std::abort();
  } catch (const UsageError&) {
  }
  // Plain text that is split and joined stays the same when it is split and joined again.
  const std::string once = data::join_blocks(data::split_plain(text));
  if (data::join_blocks(data::split_plain(once)) != once) std::abort();
  if (const auto dep5 = data::parse_dep5(text)) dep5->match("src/main.c");
  return 0;
}
