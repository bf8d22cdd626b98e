// HTML and XML pages: any bytes are either refused or become non-empty blocks; UTF-8 text stays UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/html.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen::data;
  const std::string_view page(reinterpret_cast<const char*>(data), size);
  const bool clean = is_clean_utf8(page);
  for (const char* root : {"", "DisplayArea"}) {
    HtmlRules rules;
    rules.root_id = root;
    for (const bool xml : {false, true}) {
      rules.xml = xml;
      try {
        for (const Block& block : html_blocks(page, rules))
          if (block.text.empty() || (clean && !is_clean_utf8(block.text))) std::abort();
      } catch (const molen::UsageError&) {
      }
    }
  }
  return 0;
}
