// HTML and XHTML to blocks of text. A tolerant tokenizer, not a browser: it accepts any bytes, never throws, and takes
// time and memory linear in the input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

struct HtmlRules {
  // Only the element with this id is kept, with the page's title before it; "" keeps `body` (or everything where there
  // is none).
  std::string root_id;
  std::vector<std::string> drop_tags{"script", "style",  "noscript", "template", "header",
                                     "aside",  "footer", "nav",      "svg"};
  std::vector<std::string> drop_classes{"navheader", "navfooter", "toc", "index", "MAC"};
  bool xml = false;  // Mallard pages and other XML: no void elements, root kept whole
};

std::vector<Block> html_blocks(std::string_view html, const HtmlRules& rules);

// Decodes one character reference at the start of `text` ("&amp;", "&#8211;"); appends it to `out` and returns its
// length, or 0 where it is none.
std::size_t decode_entity(std::string_view text, std::string& out);

}  // namespace molen::data
